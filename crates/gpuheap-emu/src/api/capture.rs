//! Captures, and the graphs that they record. The launch of a graph runs its work in the recorded
//! order, on one stream. Allocations in a graph are not modelled.

use super::prelude::*;
use std::sync::Arc;

use crate::state::access::{AccessKind, Is, Side};
use crate::state::capture::{Capture, Captured, Graph, Member};
use crate::state::context::this_thread;
use crate::state::stream::{Place, StreamKind, Work};
use crate::state::user_object::{Callback, HostFunction};
use crate::state::user_object::{Kept, UserObject};

/// Flag that uploads a graph when it is instantiated.
const UPLOAD: u64 = 2;
/// Valid flags of an executable graph. They free memory at launch, upload the graph, launch it from
/// a device, or use node priorities. They do not affect graphs of copies, fills and callbacks.
const INSTANTIATE_FLAGS: u64 = 1 | UPLOAD | 4 | 8;

impl Call<'_> {
    pub(crate) fn cuStreamBeginCapture_v2(
        &mut self,
        (stream, mode): args::cuStreamBeginCapture_v2,
    ) -> Outcome {
        type Mode = CUstreamCaptureMode;
        let index = self.stream(stream)?;
        fail_if(![Mode::GLOBAL, Mode::THREAD_LOCAL, Mode::RELAXED].contains(&mode), INVALID_VALUE)?;
        fail_if(
            self.state.streams.at(index).is_some_and(|found| found.kind == StreamKind::Legacy),
            CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED,
        )?;
        fail_if(self.state.captures.is_recording(index), CUresult::ERROR_ILLEGAL_STATE)?;
        let (id, context) = (self.state.fresh_id(), self.context_of(index));
        let graph = self.state.captures.graphs.insert(Graph::default());
        self.state.captures.active.push(Capture {
            id,
            graph,
            context,
            thread: this_thread(),
            mode,
            invalidated: false,
            members: vec![Member { stream: index, work: 0, joined: 0 }],
            work: Vec::new(),
        });
        Ok(())
    }

    pub(crate) fn cuStreamEndCapture(
        &mut self,
        (stream, graph): args::cuStreamEndCapture,
    ) -> Outcome {
        let index = self.stream(stream)?;
        graph.write(CUgraph::NULL)?;
        let active = &mut self.state.captures.active;
        let found = active.iter().position(|capture| capture.has(index));
        let place = found.ok_or(CUresult::ERROR_ILLEGAL_STATE)?;
        if active[place].members[0].stream != index {
            active[place].invalidated = true;
            return Err(CUresult::ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        if active[place].mode != CUstreamCaptureMode::RELAXED
            && active[place].thread != this_thread()
        {
            return Err(CUresult::ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        let ended = active.remove(place);
        let graphs = &mut self.state.captures.graphs;
        let failed = if ended.invalidated {
            Some(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED)
        } else {
            ended.is_unjoined().then_some(CUresult::ERROR_STREAM_CAPTURE_UNJOINED)
        };
        if let Some(code) = failed {
            graphs.remove(ended.graph);
            return Err(code);
        }
        let made = graphs.get_mut(ended.graph).ok_or(CUresult::ERROR_ILLEGAL_STATE)?;
        made.work = ended.work;
        graph.write(CUgraph(ended.graph))
    }

    /// Writes the state of a stream's capture. An emulated capture has no nodes and no
    /// dependencies, and its graph is empty until the capture ends.
    pub(crate) fn cuStreamGetCaptureInfo_v2(
        &mut self,
        (stream, status, id, graph, dependencies, count): args::cuStreamGetCaptureInfo_v2,
    ) -> Outcome {
        status.require()?;
        let index = self.stream(stream)?;
        let found = self.state.captures.find(index);
        let found = found.map(|capture| (capture.status(), capture.id, capture.graph));
        let Some((state, number, made)) = found else {
            return status.write(CUstreamCaptureStatus::NONE);
        };
        status.write(state)?;
        if state == CUstreamCaptureStatus::ACTIVE {
            id.write_if_wanted(number)?;
            graph.write_if_wanted(CUgraph(made))?;
            dependencies.write_if_wanted(std::ptr::null())?;
            count.write_if_wanted(0)?;
        }
        Ok(())
    }

    pub(crate) fn cuStreamGetCaptureInfo_v3(
        &mut self,
        (stream, status, id, graph, dependencies, edges, count): args::cuStreamGetCaptureInfo_v3,
    ) -> Outcome {
        self.cuStreamGetCaptureInfo_v2((stream, status, id, graph, dependencies, count))?;
        if edges.is_null() || status.get()? != CUstreamCaptureStatus::ACTIVE {
            return Ok(());
        }
        // A caller that requests edge data must also request the dependencies (measured).
        dependencies.require()?;
        edges.write(std::ptr::null())
    }

    pub(crate) fn cuStreamIsCapturing(
        &mut self,
        (stream, status): args::cuStreamIsCapturing,
    ) -> Outcome {
        let index = self.stream(stream)?;
        let found = self.state.captures.find(index);
        status.write(found.map_or(CUstreamCaptureStatus::NONE, |capture| capture.status()))
    }

    pub(crate) fn cuThreadExchangeStreamCaptureMode(
        &mut self,
        mode: Out<CUstreamCaptureMode>,
    ) -> Outcome {
        type Mode = CUstreamCaptureMode;
        let wanted = mode.get()?;
        let modes = &mut self.state.captures.modes;
        let before = match wanted {
            // The initial mode is not stored, so that the map does not grow with the number of
            // threads.
            Mode::GLOBAL => modes.remove(&this_thread()),
            Mode::THREAD_LOCAL | Mode::RELAXED => modes.insert(this_thread(), wanted),
            _ => return Err(INVALID_VALUE),
        };
        mode.write(before.unwrap_or(Mode::GLOBAL))
    }

    pub(crate) fn cuGraphInstantiateWithFlags(
        &mut self,
        (executable, graph, flags): args::cuGraphInstantiateWithFlags,
    ) -> Outcome {
        // An upload needs a stream. Only `cuGraphInstantiateWithParams` takes a stream (measured).
        fail_if(flags & UPLOAD != 0, INVALID_VALUE)?;
        self.instantiate(executable, graph, flags)
    }

    /// Makes an executable graph. There is nothing to upload.
    pub(crate) fn cuGraphInstantiateWithParams(
        &mut self,
        (executable, graph, parameters): args::cuGraphInstantiateWithParams,
    ) -> Outcome {
        let mut asked = parameters.get()?;
        let outcome = self.instantiate(executable, graph, asked.flags);
        asked.hErrNode_out = CUgraphNode::NULL;
        asked.result_out = c_int::from(outcome.is_err());
        parameters.write(asked)?;
        outcome
    }

    fn instantiate(&mut self, executable: Out<CUgraphExec>, graph: CUgraph, flags: u64) -> Outcome {
        executable.require()?;
        let found = self.state.captures.graphs.get(graph.0);
        let made = found.ok_or(INVALID_VALUE)?.clone();
        fail_if(flags & !INSTANTIATE_FLAGS != 0, INVALID_VALUE)?;
        let made = self.state.captures.executables.insert(made);
        executable.write(CUgraphExec(made))
    }

    /// Enqueues work that does nothing, because there is nothing to upload.
    pub(crate) fn cuGraphUpload(&mut self, (executable, stream): args::cuGraphUpload) -> Outcome {
        let index = self.stream(stream)?;
        fail_if(self.state.captures.executables.get(executable.0).is_none(), INVALID_VALUE)?;
        self.refuse_while_recording(index)?;
        self.take_turn(index);
        Ok(())
    }

    pub(crate) fn cuGraphLaunch(&mut self, (executable, stream): args::cuGraphLaunch) -> Outcome {
        let index = self.stream(stream)?;
        let found = self.state.captures.executables.get(executable.0);
        let graph = found.ok_or(INVALID_VALUE)?.clone();
        if let Some(capture) = self.state.captures.find(index) {
            // A graph cannot be launched within a graph.
            capture.invalidated = true;
            return Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        for work in graph.work {
            self.launch_recorded(index, work);
        }
        if !graph.kept.is_empty() {
            self.begin(index);
            let clock = self.clock_of(index);
            self.enqueue(index, Work::Release(graph.kept, clock), &[]);
        }
        self.alive(self.context_of(index))
    }

    /// Writes the number of a graph's nodes, and a handle for each node. No other function accepts
    /// these handles.
    pub(crate) fn cuGraphGetNodes(
        &mut self,
        (graph, nodes, count): args::cuGraphGetNodes,
    ) -> Outcome {
        let found = self.state.captures.graphs.get(graph.0);
        let known = found.ok_or(INVALID_VALUE)?.work.len();
        if nodes.is_null() {
            return count.write(known);
        }
        let room = count.get()?;
        for index in 0..room {
            let node = if index < known { index + 1 } else { 0 };
            nodes.at(index).write(CUgraphNode(node))?;
        }
        count.write(known.min(room))
    }

    pub(crate) fn cuGraphExecDestroy(&mut self, executable: CUgraphExec) -> Outcome {
        let gone = self.state.captures.executables.remove(executable.0);
        gone.map(drop).ok_or(INVALID_VALUE)
    }

    pub(crate) fn cuGraphDestroy(&mut self, graph: CUgraph) -> Outcome {
        // Until a capture ends, its graph belongs to the capture.
        fail_if(
            self.state.captures.active.iter().any(|capture| capture.graph == graph.0),
            INVALID_VALUE,
        )?;
        let gone = self.state.captures.graphs.remove(graph.0);
        gone.map(drop).ok_or(INVALID_VALUE)
    }

    pub(crate) fn cuUserObjectCreate(
        &mut self,
        (object, data, destroy, count, flags): args::cuUserObjectCreate,
    ) -> Outcome {
        object.require()?;
        fail_if(
            destroy.is_none() || count == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC,
            INVALID_VALUE,
        )?;
        let function = HostFunction::Plain(destroy);
        let end = Callback { function, data: data.address(), clock: None };
        let captures = &mut self.state.captures;
        let kept = Arc::new(Kept::new(end, captures.due.clone()));
        let made = captures.objects.insert(UserObject { kept, references: count });
        object.write(CUuserObject(made))
    }

    pub(crate) fn cuUserObjectRelease(
        &mut self,
        (object, count): args::cuUserObjectRelease,
    ) -> Outcome {
        let objects = &mut self.state.captures.objects;
        let found = objects.get_mut(object.0).ok_or(INVALID_VALUE)?;
        let left = found.references.checked_sub(count).filter(|_| count != 0);
        found.references = left.ok_or(INVALID_VALUE)?;
        if found.references == 0 {
            // Graphs may still keep the object.
            objects.remove(object.0);
        }
        Ok(())
    }

    /// Makes a graph keep a user object alive. The graph of an active capture is accepted too
    /// (measured).
    pub(crate) fn cuGraphRetainUserObject(
        &mut self,
        (graph, object, count, flags): args::cuGraphRetainUserObject,
    ) -> Outcome {
        let captures = &mut self.state.captures;
        let found = captures.objects.get(object.0).ok_or(INVALID_VALUE)?;
        let (kept, references) = (found.kept.clone(), found.references);
        let keeper = captures.graphs.get_mut(graph.0).ok_or(INVALID_VALUE)?;
        let moves = flags == CU_GRAPH_USER_OBJECT_MOVE;
        fail_if(count == 0 || !(flags == 0 || moves && count <= references), INVALID_VALUE)?;
        keeper.kept.push(kept);
        if moves { self.cuUserObjectRelease((object, count)) } else { Ok(()) }
    }

    /// Calls the destructors of user objects that ended, without holding the lock.
    pub(crate) fn end_user_objects(&mut self) {
        for end in self.state.captures.due.take() {
            self.order_host_after(end.clock.as_deref());
            self.run_unlocked(|| end.run(CUresult::SUCCESS));
        }
    }

    /// Writes zero, because allocations in a graph are not modelled.
    pub(crate) fn cuDeviceGetGraphMemAttribute(
        &mut self,
        (device, attribute, value): args::cuDeviceGetGraphMemAttribute,
    ) -> Outcome {
        self.device(device)?;
        match attribute {
            // SAFETY: the caller passes a pointer to a `u64` for each of these attributes.
            CUgraphMem_attribute(0..=3) => unsafe { value.cast::<u64>() }.write(0),
            _ => Err(INVALID_VALUE),
        }
    }

    /// Resets a high-water mark to 0, the only valid value. The mark is always 0, because
    /// allocations in a graph are not modelled.
    pub(crate) fn cuDeviceSetGraphMemAttribute(
        &mut self,
        (device, attribute, value): args::cuDeviceSetGraphMemAttribute,
    ) -> Outcome {
        type A = CUgraphMem_attribute;
        self.device(device)?;
        // SAFETY: the caller passes a pointer to a `u64` for each attribute.
        match (attribute, unsafe { value.cast::<u64>() }.get()?) {
            (A::USED_MEM_HIGH | A::RESERVED_MEM_HIGH, 0) => Ok(()),
            _ => Err(INVALID_VALUE),
        }
    }

    pub(crate) fn cuDeviceGraphMemTrim(&mut self, device: CUdevice) -> Outcome {
        self.device(device).map(drop)
    }

    /// Refuses a call that a capture of the stream does not allow, and invalidates the capture.
    pub(crate) fn refuse_while_recording(&mut self, stream: u32) -> Outcome {
        let Some(capture) = self.state.captures.find(stream) else { return Ok(()) };
        capture.invalidated = true;
        Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Refuses a call if any stream of a context is recording, and invalidates the captures of
    /// those streams.
    pub(crate) fn refuse_while_any_records(&mut self, context: u32) -> Outcome {
        let mut any = false;
        for capture in &mut self.state.captures.active {
            if capture.context == context {
                capture.invalidated = true;
                any = true;
            }
        }
        if any { Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Refuses a call on the default stream if a blocking stream of its context is capturing a
    /// graph. The default stream would wait for that stream, but no call may wait for a capturing
    /// stream.
    pub(crate) fn refuse_implicit(&mut self, legacy: u32) -> Outcome {
        let context = self.context_of(legacy);
        let state = &mut *self.state;
        let mut any = false;
        for capture in &mut state.captures.active {
            let blocking = capture.members.iter().any(|member| {
                state.streams.at(member.stream).is_some_and(|stream| stream.is_blocking())
            });
            if capture.context == context && blocking {
                // Only these queries leave the capture valid (measured).
                let queries = ["cuStreamIsCapturing", "cuStreamGetCaptureInfo"];
                capture.invalidated |= !queries.iter().any(|name| self.symbol.starts_with(name));
                any = true;
            }
        }
        if any { Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT) } else { Ok(()) }
    }

    /// Records work into the capture of its stream; returns the work if the stream is not
    /// recording.
    pub(crate) fn record_work(&mut self, stream: u32, work: Work) -> Option<Work> {
        let Some(capture) = self.state.captures.find(stream) else { return Some(work) };
        if let Some(member) = capture.member(stream) {
            member.work += 1;
        }
        capture.work.push(work);
        None
    }

    /// Returns the point that a stream has reached in its capture; `None` if the stream is not
    /// recording.
    pub(crate) fn captured_point(&mut self, stream: u32) -> Option<Captured> {
        let capture = self.state.captures.find(stream)?;
        let (id, work) = (capture.id, capture.member(stream)?.work);
        Some(Captured { capture: id, stream, work })
    }

    /// Refuses a query of an event, or a wait for it, if the event marks a point of a capture.
    pub(crate) fn refuse_captured(&mut self, captured: Option<Captured>) -> Outcome {
        let Some(captured) = captured else { return Ok(()) };
        let active = &mut self.state.captures.active;
        if let Some(capture) = active.iter_mut().find(|capture| capture.id == captured.capture) {
            capture.invalidated = true;
        }
        Err(CUresult::ERROR_CAPTURED_EVENT)
    }

    /// Makes a stream wait for an event. The stream, the event's stream, or both are in a capture.
    pub(crate) fn wait_recorded(&mut self, stream: u32, event: Option<Captured>) -> Outcome {
        let captures = &mut self.state.captures;
        let position = |is: &dyn Fn(&Capture) -> bool| captures.active.iter().position(is);
        let own = position(&|capture| capture.has(stream));
        let marked = event
            .and_then(|event| Some((event, position(&|capture| capture.id == event.capture)?)));
        let Some((event, theirs)) = marked else {
            if let Some(own) = own {
                captures.active[own].invalidated = true;
            }
            return Err(CUresult::ERROR_STREAM_CAPTURE_ISOLATION);
        };
        if let Some(own) = own.filter(|own| *own != theirs) {
            captures.active[own].invalidated = true;
            captures.active[theirs].invalidated = true;
            return Err(CUresult::ERROR_STREAM_CAPTURE_MERGE);
        }
        let capture = &mut captures.active[theirs];
        fail_if(capture.invalidated, CUresult::ERROR_STREAM_CAPTURE_INVALIDATED)?;
        if let Some(member) = capture.member(event.stream)
            && event.stream != stream
        {
            member.joined = member.joined.max(event.work);
        }
        if own.is_none() {
            capture.members.push(Member { stream, work: 0, joined: 0 });
        }
        Ok(())
    }

    /// Drops the captures that `gone` selects. These belong to a context that ends, or to a stream
    /// that is destroyed.
    pub(crate) fn drop_captures(&mut self, gone: impl Fn(&Capture) -> bool) {
        let captures = &mut self.state.captures;
        captures.active.retain(|capture| {
            let stays = !gone(capture);
            if !stays {
                captures.graphs.remove(capture.graph);
            }
            stays
        });
    }

    fn launch_recorded(&mut self, stream: u32, mut work: Work) {
        self.begin(stream);
        match &mut work {
            Work::Copy(copy) => {
                let (target, source) =
                    (side(&copy.target, copy.target_pitch), side(&copy.source, copy.source_pitch));
                self.note_copy(stream, target, source, copy.width, copy.height);
            }
            Work::Fill(fill) => {
                for row in 0..fill.height {
                    let start = fill.target + row * fill.pitch;
                    self.note_access(stream, start, fill.width, AccessKind::Write);
                }
            }
            Work::Kernel(kernel) => {
                kernel.error = self.note_kernel(stream, kernel.kernel, &kernel.words).err();
            }
            Work::Callback(callback) => callback.clock = self.clock_of(stream),
            Work::Foreign(_) => self.state.counts.launches_dropped += 1,
            Work::Nothing | Work::Record(_) | Work::FreePool(_) | Work::Release(..) => {}
        }
        self.enqueue(stream, work, &[]);
    }
}

fn side(place: &Place, pitch: u64) -> Side {
    match place {
        Place::Device(address) => Side { address: *address, is: Is::Device, pitch },
        Place::Host(address) => Side { address: *address, is: Is::Host, pitch },
        Place::Staged(_) => Side { address: 0, is: Is::Host, pitch },
    }
}
