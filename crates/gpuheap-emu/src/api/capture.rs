//! Captures, and the graphs that they record. A graph runs in the order in which it was recorded,
//! all on the stream that it is launched on. Allocations in a graph are not modelled.

use gpuheap_driver::*;

use crate::Outcome;
use crate::args::Out;
use crate::emulator::Call;
use crate::state::access::{Access, Is, Side};
use crate::state::capture::{Capture, Captured, Graph, Member};
use crate::state::context::this_thread;
use crate::state::stream::{Place, StreamKind, Work};

impl Call<'_> {
    pub(crate) fn cuStreamBeginCapture_v2(
        &mut self,
        stream: CUstream,
        mode: CUstreamCaptureMode,
    ) -> Outcome {
        type Mode = CUstreamCaptureMode;
        let index = self.stream(stream)?;
        if ![Mode::GLOBAL, Mode::THREAD_LOCAL, Mode::RELAXED].contains(&mode) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if self.state.streams.at(index).is_some_and(|found| found.kind == StreamKind::Legacy) {
            return Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if self.state.captures.is_recording(index) {
            return Err(CUresult::ERROR_ILLEGAL_STATE);
        }
        let (id, context) = (self.state.fresh_id(), self.context_of(index));
        self.state.captures.active.push(Capture {
            id,
            context,
            thread: this_thread(),
            mode,
            invalidated: false,
            members: vec![Member { stream: index, work: 0, joined: 0 }],
            work: Vec::new(),
        });
        Ok(())
    }

    pub(crate) fn cuStreamEndCapture(&mut self, stream: CUstream, graph: Out<CUgraph>) -> Outcome {
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
        if ended.invalidated {
            return Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        if ended.is_unjoined() {
            return Err(CUresult::ERROR_STREAM_CAPTURE_UNJOINED);
        }
        let made = self.state.captures.graphs.insert(Graph { work: ended.work });
        graph.write(CUgraph(made))
    }

    pub(crate) fn cuStreamIsCapturing(
        &mut self,
        stream: CUstream,
        status: Out<CUstreamCaptureStatus>,
    ) -> Outcome {
        let index = self.stream(stream)?;
        let found = self.state.captures.of(index);
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
            // The mode that threads start with is not kept, so that the map does not grow with the
            // number of threads.
            Mode::GLOBAL => modes.remove(&this_thread()),
            Mode::THREAD_LOCAL | Mode::RELAXED => modes.insert(this_thread(), wanted),
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
        mode.write(before.unwrap_or(Mode::GLOBAL))
    }

    pub(crate) fn cuGraphInstantiateWithFlags(
        &mut self,
        executable: Out<CUgraphExec>,
        graph: CUgraph,
        flags: u64,
    ) -> Outcome {
        executable.require()?;
        let found = self.state.captures.graphs.get(graph.0);
        let made = found.ok_or(CUresult::ERROR_INVALID_VALUE)?.clone();
        if flags != 0 {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let made = self.state.captures.executables.insert(made);
        executable.write(CUgraphExec(made))
    }

    pub(crate) fn cuGraphLaunch(&mut self, executable: CUgraphExec, stream: CUstream) -> Outcome {
        let index = self.stream(stream)?;
        let found = self.state.captures.executables.get(executable.0);
        let graph = found.ok_or(CUresult::ERROR_INVALID_VALUE)?.clone();
        if let Some(capture) = self.state.captures.of(index) {
            // A graph cannot be launched within a graph.
            capture.invalidated = true;
            return Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        for work in graph.work {
            self.launch_recorded(index, work);
        }
        self.alive(self.context_of(index))
    }

    pub(crate) fn cuGraphExecDestroy(&mut self, executable: CUgraphExec) -> Outcome {
        let gone = self.state.captures.executables.remove(executable.0);
        gone.map(drop).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    pub(crate) fn cuGraphDestroy(&mut self, graph: CUgraph) -> Outcome {
        let gone = self.state.captures.graphs.remove(graph.0);
        gone.map(drop).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// Refuses a call that a stream's capture does not allow, and invalidates the capture.
    pub(crate) fn refuse_while_recording(&mut self, stream: u32) -> Outcome {
        let Some(capture) = self.state.captures.of(stream) else { return Ok(()) };
        capture.invalidated = true;
        Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Refuses a call if any stream of a context is recording, and invalidates those captures.
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

    /// Refuses a call on the default stream that would wait for a recording stream. The default
    /// stream waits for all blocking streams of its context, and a recording stream cannot be
    /// waited for.
    pub(crate) fn refuse_implicit(&mut self, legacy: u32) -> Outcome {
        let context = self.context_of(legacy);
        let state = &mut *self.state;
        let mut any = false;
        for capture in &mut state.captures.active {
            let blocking = capture.members.iter().any(|member| {
                state.streams.at(member.stream).is_some_and(|stream| stream.is_blocking())
            });
            if capture.context == context && blocking {
                // The query alone does not invalidate the capture.
                capture.invalidated |= !self.symbol.starts_with("cuStreamIsCapturing");
                any = true;
            }
        }
        if any { Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT) } else { Ok(()) }
    }

    /// Records work into the capture of its stream; returns the work if the stream is not
    /// recording.
    pub(crate) fn record_work(&mut self, stream: u32, work: Work) -> Option<Work> {
        let Some(capture) = self.state.captures.of(stream) else { return Some(work) };
        if let Some(member) = capture.member(stream) {
            member.work += 1;
        }
        capture.work.push(work);
        None
    }

    /// Returns the point of its capture that a stream has reached.
    pub(crate) fn captured_point(&mut self, stream: u32) -> Option<Captured> {
        let capture = self.state.captures.of(stream)?;
        let (id, work) = (capture.id, capture.member(stream)?.work);
        Some(Captured { capture: id, stream, work })
    }

    /// Refuses a query or wait of the host for an event that marks a point of a capture.
    pub(crate) fn refuse_captured(&mut self, captured: Option<Captured>) -> Outcome {
        let Some(captured) = captured else { return Ok(()) };
        let active = &mut self.state.captures.active;
        if let Some(capture) = active.iter_mut().find(|capture| capture.id == captured.capture) {
            capture.invalidated = true;
        }
        Err(CUresult::ERROR_CAPTURED_EVENT)
    }

    /// Lets a stream wait for an event if the stream, the event's stream, or both are recording.
    pub(crate) fn wait_recorded(&mut self, stream: u32, event: Option<Captured>) -> Outcome {
        let isolated = CUresult::ERROR_STREAM_CAPTURE_ISOLATION;
        let captures = &mut self.state.captures;
        let own = captures.active.iter().position(|capture| capture.has(stream));
        let Some(event) = event else {
            if let Some(own) = own {
                captures.active[own].invalidated = true;
            }
            return Err(isolated);
        };
        let theirs = captures.active.iter().position(|capture| capture.id == event.capture);
        let Some(theirs) = theirs else {
            if let Some(own) = own {
                captures.active[own].invalidated = true;
            }
            return Err(isolated);
        };
        if let Some(own) = own.filter(|own| *own != theirs) {
            captures.active[own].invalidated = true;
            captures.active[theirs].invalidated = true;
            return Err(CUresult::ERROR_STREAM_CAPTURE_MERGE);
        }
        let capture = &mut captures.active[theirs];
        if capture.invalidated {
            return Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED);
        }
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

    /// Drops the captures of a context that ends, or of a stream that is destroyed.
    pub(crate) fn drop_captures(&mut self, gone: impl Fn(&Capture) -> bool) {
        self.state.captures.active.retain(|capture| !gone(capture));
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
                    self.note_access(stream, start, fill.width, Access::Write);
                }
            }
            Work::Kernel(kernel) => {
                kernel.error = self.note_kernel(stream, kernel.kernel, &kernel.words).err();
            }
            Work::Callback(callback) => callback.clock = self.clock_of(stream),
            Work::Nothing | Work::Record(_) | Work::FreePool(_) => {}
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
