//! Contexts: primary contexts, contexts that programs create, and each thread's stack of contexts.

use super::prelude::*;
use crate::state::context::Context;
use crate::state::device::{Device, Owner};
use crate::state::stream::{Stream, StreamKind};

/// Valid flags of a context: way of waiting (0, 1, 2, 4), mapped host memory, kept local memory,
/// core dumps, synchronous copies.
const CONTEXT_FLAGS: c_uint = 0xff;
/// Lowest and highest priority of streams, as on an H200.
pub(crate) const PRIORITIES: (c_int, c_int) = (0, -5);
/// `CU_CTX_MAP_HOST`. Every context has it (measured).
const MAP_HOST: c_uint = 8;
/// Version that `cuCtxGetApiVersion` writes under driver 580.
const API_VERSION: c_uint = 3020;
/// Limits known to the driver: `CU_LIMIT_STACK_SIZE` and the limits after it.
const LIMITS: std::ops::Range<c_int> = 0..7;
/// `CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH`, which newer devices lack.
const UNSUPPORTED_LIMIT: c_int = 3;

impl Call<'_> {
    pub(crate) fn cuDevicePrimaryCtxRetain(
        &mut self,
        (context, device): args::cuDevicePrimaryCtxRetain,
    ) -> Outcome {
        context.require()?;
        let primary = &self.device(device)?.primary;
        let (known, flags) = (primary.handle.filter(|_| primary.active), primary.flags);
        let handle = match known {
            Some(handle) => handle,
            None => self.create_context(device as usize, flags, true)?,
        };
        let primary = &mut self.state.devices[device as usize].primary;
        primary.handle = Some(handle);
        primary.active = true;
        primary.retained += 1;
        context.write(CUcontext(handle))
    }

    pub(crate) fn cuDevicePrimaryCtxRelease_v2(&mut self, device: CUdevice) -> Outcome {
        let primary = &mut self.device(device)?.primary;
        fail_if(primary.retained == 0, CUresult::ERROR_INVALID_CONTEXT)?;
        primary.retained -= 1;
        if primary.retained == 0 {
            self.end_primary(device as usize, true);
        }
        Ok(())
    }

    /// Immediately frees everything in the primary context.
    pub(crate) fn cuDevicePrimaryCtxReset_v2(&mut self, device: CUdevice) -> Outcome {
        self.device(device)?;
        self.end_primary(device as usize, false);
        Ok(())
    }

    fn end_primary(&mut self, device: usize, report_leaks: bool) {
        let primary = &mut self.state.devices[device].primary;
        if std::mem::take(&mut primary.active)
            && let Some(handle) = primary.handle
        {
            self.destroy_context(handle, report_leaks);
        }
    }

    pub(crate) fn cuDevicePrimaryCtxSetFlags_v2(
        &mut self,
        (device, flags): args::cuDevicePrimaryCtxSetFlags_v2,
    ) -> Outcome {
        check_flags(flags)?;
        let primary = &mut self.device(device)?.primary;
        primary.flags = flags;
        if let Some(handle) = primary.handle
            && let Some(context) = self.state.contexts.get_mut(handle)
        {
            context.flags = flags;
        }
        Ok(())
    }

    pub(crate) fn cuDevicePrimaryCtxGetState(
        &mut self,
        (device, flags, active): args::cuDevicePrimaryCtxGetState,
    ) -> Outcome {
        let primary = &self.device(device)?.primary;
        flags.write(primary.flags)?;
        active.write(c_int::from(primary.active))
    }

    pub(crate) fn cuCtxCreate_v2(
        &mut self,
        (context, flags, device): args::cuCtxCreate_v2,
    ) -> Outcome {
        context.require()?;
        self.device(device)?;
        check_flags(flags)?;
        let handle = self.create_context(device as usize, flags, false)?;
        self.state.stacks.with(|stack| stack.push(handle));
        context.write(CUcontext(handle))
    }

    pub(crate) fn cuCtxCreate_v3(
        &mut self,
        (context, affinity, count, flags, device): args::cuCtxCreate_v3,
    ) -> Outcome {
        fail_if(!affinity.is_null() || count != 0, CUresult::ERROR_NOT_SUPPORTED)?;
        self.cuCtxCreate_v2((context, flags, device))
    }

    pub(crate) fn cuCtxCreate_v4(
        &mut self,
        (context, parameters, flags, device): args::cuCtxCreate_v4,
    ) -> Outcome {
        fail_if(!parameters.is_null(), CUresult::ERROR_NOT_SUPPORTED)?;
        self.cuCtxCreate_v2((context, flags, device))
    }

    pub(crate) fn cuCtxDestroy_v2(&mut self, context: CUcontext) -> Outcome {
        self.initialised()?;
        fail_if(context.is_null(), INVALID_VALUE)?;
        match self.state.contexts.get(context.0) {
            None => return Err(CUresult::ERROR_CONTEXT_IS_DESTROYED),
            Some(found) if found.primary => return Err(CUresult::ERROR_INVALID_CONTEXT),
            Some(_) => {}
        }
        self.destroy_context(context.0, true);
        self.state.stacks.with(|stack| stack.pop_if(|top| *top == context.0));
        Ok(())
    }

    pub(crate) fn cuCtxAttach(&mut self, (context, flags): args::cuCtxAttach) -> Outcome {
        let current = self.current()?;
        context.require()?;
        fail_if(flags != 0, INVALID_VALUE)?;
        self.current_context_mut()?.attached += 1;
        context.write(CUcontext(self.state.contexts.handle(current)))
    }

    /// Removes a reference to the current context. Removing the last reference destroys the
    /// context. A primary context is not affected, because `cuDevicePrimaryCtxRetain` counts its
    /// references (measured).
    pub(crate) fn cuCtxDetach(&mut self, context: CUcontext) -> Outcome {
        let current = self.current()?;
        fail_if(self.state.contexts.handle(current) != context.0, CUresult::ERROR_INVALID_CONTEXT)?;
        match self.state.contexts.at_mut(current) {
            Some(found) if found.attached != 0 => {
                found.attached -= 1;
                Ok(())
            }
            Some(found) if found.primary => Ok(()),
            _ => self.cuCtxDestroy_v2(context),
        }
    }

    pub(crate) fn cuCtxPushCurrent_v2(&mut self, context: CUcontext) -> Outcome {
        self.initialised()?;
        fail_if(context.is_null(), INVALID_VALUE)?;
        self.context(context)?;
        self.state.stacks.with(|stack| stack.push(context.0));
        Ok(())
    }

    pub(crate) fn cuCtxPopCurrent_v2(&mut self, context: Out<CUcontext>) -> Outcome {
        self.initialised()?;
        let popped = self.state.stacks.with(Vec::pop);
        let popped = popped.ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        context.write_if_wanted(CUcontext(popped))
    }

    pub(crate) fn cuCtxSetCurrent(&mut self, context: CUcontext) -> Outcome {
        self.initialised()?;
        if !context.is_null() {
            self.context(context)?;
        }
        self.state.stacks.with(|stack| {
            stack.pop();
            if !context.is_null() {
                stack.push(context.0);
            }
        });
        Ok(())
    }

    pub(crate) fn cuCtxGetCurrent(&mut self, context: Out<CUcontext>) -> Outcome {
        self.initialised()?;
        context.write(CUcontext(self.state.stacks.top()))
    }

    pub(crate) fn cuCtxGetDevice(&mut self, device: Out<CUdevice>) -> Outcome {
        self.cuCtxGetDevice_v2((device, CUcontext::NULL))
    }

    pub(crate) fn cuCtxGetDevice_v2(
        &mut self,
        (device, context): args::cuCtxGetDevice_v2,
    ) -> Outcome {
        self.initialised()?;
        let handle = Some(context.0).filter(|_| !context.is_null()).or(self.current_handle());
        let handle = handle.ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        // The driver returns the device of a primary context even after a reset (measured).
        let primary = |device: &Device| device.primary.handle == Some(handle);
        let found = match self.state.devices.iter().position(primary) {
            Some(found) => found,
            None => self.context_or_current(context)?.device,
        };
        device.write(found as CUdevice)
    }

    pub(crate) fn cuCtxGetFlags(&mut self, flags: Out<c_uint>) -> Outcome {
        let current = self.current_context()?;
        flags.write(current.flags | MAP_HOST)
    }

    pub(crate) fn cuCtxSetFlags(&mut self, flags: c_uint) -> Outcome {
        let context = self.current_context_mut()?;
        check_flags(flags)?;
        context.flags = flags;
        let (device, is_primary) = (context.device, context.primary);
        if is_primary {
            self.state.devices[device].primary.flags = flags;
        }
        Ok(())
    }

    pub(crate) fn cuCtxGetId(&mut self, (context, id): args::cuCtxGetId) -> Outcome {
        let found = self.context_or_current(context)?.id;
        id.write(found)
    }

    pub(crate) fn cuCtxSynchronize(&mut self) -> Outcome {
        self.cuCtxSynchronize_v2(CUcontext::NULL)
    }

    pub(crate) fn cuCtxSynchronize_v2(&mut self, context: CUcontext) -> Outcome {
        let context = if context.is_null() {
            self.current()?
        } else {
            self.initialised()?;
            let known = self.state.contexts.index(context.0);
            known.ok_or(CUresult::ERROR_CONTEXT_IS_DESTROYED)?
        };
        self.alive(context)?;
        self.refuse_while_any_records(context)?;
        self.complete_context(context);
        self.release_idle(self.device_of(context));
        self.alive(context)
    }

    pub(crate) fn cuCtxSetLimit(&mut self, (limit, value): args::cuCtxSetLimit) -> Outcome {
        let context = self.current_context_mut()?;
        check_limit(limit)?;
        context.limits.insert(limit, value);
        Ok(())
    }

    pub(crate) fn cuCtxGetLimit(&mut self, (value, limit): args::cuCtxGetLimit) -> Outcome {
        let current = self.current_context()?;
        check_limit(limit)?;
        // Defaults as on the H200.
        let default = match limit {
            0 => 1024,       // CU_LIMIT_STACK_SIZE
            1 => 8_650_752,  // CU_LIMIT_PRINTF_FIFO_SIZE
            2 => 8 << 20,    // CU_LIMIT_MALLOC_HEAP_SIZE
            4 => 2048,       // CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT
            5 => 64,         // CU_LIMIT_MAX_L2_FETCH_GRANULARITY
            _ => 11_796_480, // CU_LIMIT_PERSISTING_L2_CACHE_SIZE
        };
        value.write(current.limits.get(&limit).copied().unwrap_or(default))
    }

    pub(crate) fn cuCtxGetApiVersion(
        &mut self,
        (context, version): args::cuCtxGetApiVersion,
    ) -> Outcome {
        self.context_or_current(context)?;
        version.write(API_VERSION)
    }

    pub(crate) fn cuCtxGetStreamPriorityRange(
        &mut self,
        (least, greatest): args::cuCtxGetStreamPriorityRange,
    ) -> Outcome {
        self.current()?;
        least.write_if_wanted(PRIORITIES.0)?;
        greatest.write_if_wanted(PRIORITIES.1)
    }

    pub(crate) fn cuCtxEnablePeerAccess(
        &mut self,
        (peer, flags): args::cuCtxEnablePeerAccess,
    ) -> Outcome {
        let current = self.current()?;
        fail_if(flags != 0, INVALID_VALUE)?;
        let far = self.context(peer)?.device;
        let near = self.device_of(current);
        fail_if(
            !self.peers_reach(near as CUdevice, far as CUdevice)?,
            CUresult::ERROR_PEER_ACCESS_UNSUPPORTED,
        )?;
        let peers = &mut self.current_context_mut()?.peers;
        fail_if(peers.contains(&peer.0), CUresult::ERROR_PEER_ACCESS_ALREADY_ENABLED)?;
        peers.push(peer.0);
        Ok(())
    }

    pub(crate) fn cuCtxDisablePeerAccess(&mut self, peer: CUcontext) -> Outcome {
        self.current()?;
        self.context(peer)?;
        let peers = &mut self.current_context_mut()?.peers;
        let known = peers.iter().position(|known| *known == peer.0);
        peers.swap_remove(known.ok_or(CUresult::ERROR_PEER_ACCESS_NOT_ENABLED)?);
        Ok(())
    }

    /// Returns the handle of the thread's context, valid or not; `None` if the thread has no
    /// context.
    pub(crate) fn current_handle(&self) -> Option<usize> {
        Some(self.state.stacks.top()).filter(|handle| *handle != 0)
    }

    /// Returns the index of the thread's context, if that context is alive.
    pub(crate) fn current(&self) -> Outcome<u32> {
        self.initialised()?;
        let handle = self.current_handle().ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        let context =
            self.state.contexts.index(handle).ok_or(CUresult::ERROR_CONTEXT_IS_DESTROYED)?;
        self.alive(context)?;
        Ok(context)
    }

    /// Returns the code for a stale handle of a stream or event. If the current context was
    /// destroyed together with the object, returns the code for that context (measured).
    pub(crate) fn stale_handle(&self) -> CUresult {
        let destroyed = CUresult::ERROR_CONTEXT_IS_DESTROYED;
        if self.current() == Err(destroyed) { destroyed } else { CUresult::ERROR_INVALID_HANDLE }
    }

    pub(crate) fn current_context(&self) -> Outcome<&Context> {
        self.state.contexts.at(self.current()?).ok_or(CUresult::ERROR_INVALID_CONTEXT)
    }

    pub(crate) fn current_context_mut(&mut self) -> Outcome<&mut Context> {
        let current = self.current()?;
        self.state.contexts.at_mut(current).ok_or(CUresult::ERROR_INVALID_CONTEXT)
    }

    /// Waits for all work of a context.
    pub(crate) fn complete_context(&mut self, context: u32) {
        let ops = self.state.last_ops(context);
        self.complete_all(ops);
        self.host_waits_for_context(context);
    }

    /// Returns an error if the context is lost. Every later call in the context returns this error.
    pub(crate) fn alive(&self, context: u32) -> Outcome {
        self.state.contexts.at(context).and_then(|context| context.error).map_or(Ok(()), Err)
    }

    pub(crate) fn context(&self, handle: CUcontext) -> Outcome<&Context> {
        self.initialised()?;
        fail_if(handle.is_null(), CUresult::ERROR_INVALID_CONTEXT)?;
        self.state.contexts.get(handle.0).ok_or(CUresult::ERROR_CONTEXT_IS_DESTROYED)
    }

    pub(crate) fn device_of(&self, context: u32) -> usize {
        self.state.contexts.at(context).map_or(0, |context| context.device)
    }

    fn context_or_current(&self, handle: CUcontext) -> Outcome<&Context> {
        if handle.is_null() { self.current_context() } else { self.context(handle) }
    }

    fn create_context(&mut self, device: usize, flags: u32, primary: bool) -> Outcome<usize> {
        let bytes = self.state.devices[device].profile.context_bytes;
        fail_if(!self.charge(device, Owner::Context, bytes), CUresult::ERROR_OUT_OF_MEMORY)?;
        let (id, stream_id) = (self.state.fresh_id(), self.state.fresh_id());
        let context = Context { device, primary, flags, id, bytes, ..Context::default() };
        let state = &mut *self.state;
        let known = state.devices[device].primary.handle.filter(|_| primary);
        let handle = match known {
            Some(handle) => {
                state.contexts.revive(handle, context);
                handle
            }
            None => state.contexts.insert(context),
        };
        let index = state.contexts.index(handle).unwrap_or_default();
        let legacy = Stream::new(index, StreamKind::Legacy, 0, 0, stream_id);
        let legacy = state.streams.insert(legacy);
        if let Some(context) = state.contexts.at_mut(index) {
            context.legacy = state.streams.index(legacy).unwrap_or_default();
        }
        Ok(handle)
    }

    /// Ends a context and everything in it.
    fn destroy_context(&mut self, handle: usize, report_leaks: bool) {
        let Some(context) = self.state.contexts.index(handle) else { return };
        self.drop_captures(|capture| capture.context == context);
        self.complete_context(context);
        self.free_context(context, report_leaks);
        for stream in self.state.streams.remove_all(|stream| stream.context == context) {
            self.stream_gone(stream);
        }
        self.state.events.remove_all(|event| event.context == context);
        // Libraries stay: they belong to no context.
        self.state.modules.remove_all(|module| module.context == Some(context));
        self.state.functions.remove_all(|function| function.context == Some(context));
        let contexts = &mut self.state.contexts;
        let primary = contexts.get(handle).is_some_and(|context| context.primary);
        let gone = if primary { contexts.suspend(handle) } else { contexts.remove(handle) };
        if let Some(gone) = gone {
            self.release(gone.device, Owner::Context, gone.bytes);
        }
    }
}

fn check_limit(limit: c_int) -> Outcome {
    match limit {
        UNSUPPORTED_LIMIT => Err(CUresult::ERROR_UNSUPPORTED_LIMIT),
        known if LIMITS.contains(&known) => Ok(()),
        _ => Err(INVALID_VALUE),
    }
}

fn check_flags(flags: c_uint) -> Outcome {
    let waiting = flags & 7;
    fail_if(flags & !CONTEXT_FLAGS != 0 || !matches!(waiting, 0 | 1 | 2 | 4), INVALID_VALUE)?;
    Ok(())
}
