//! A live allocation, as the table of a heap holds it.

use std::sync::Arc;

use gpuheap::{Block, Device, Error, Stream};

use crate::scope::Scope;

/// A block, with what has to come before its free.
pub(crate) struct Held {
    block: Block,
    /// Scope and streams, which few blocks have; boxed, so that the others fit in cache lines of
    /// their own.
    rest: Option<Box<Rest>>,
}

#[derive(Default)]
struct Rest {
    /// The open scope in which it was allocated.
    scope: Option<Arc<Scope>>,
    /// Streams behind whose work the free comes too.
    also_on: Vec<Stream>,
}

impl Held {
    #[inline]
    pub(crate) fn new(block: Block, scope: Option<Arc<Scope>>) -> Held {
        let rest = scope.map(|scope| Box::new(Rest { scope: Some(scope), also_on: Vec::new() }));
        Held { block, rest }
    }

    /// Takes it out of its scope.
    pub(crate) fn keep(&mut self) {
        self.leave_scope();
        if let Some(rest) = &mut self.rest {
            rest.scope = None;
        }
    }

    /// Puts the free behind the work of `stream`, as of the free.
    pub(crate) fn use_on(&mut self, stream: &Stream) {
        let also_on = &mut self.rest.get_or_insert_default().also_on;
        if !also_on.iter().any(|known| known.id() == stream.id() && !known.is_retired()) {
            also_on.push(stream.clone());
        }
    }

    /// Frees the block in the order of its own stream and of all that use it too.
    #[inline]
    pub(crate) fn free(self, device: &Device) -> Result<(), Error> {
        self.leave_scope();
        match self.rest {
            Some(rest) if !rest.also_on.is_empty() => behind(self.block, &rest.also_on, device),
            _ => self.block.free(),
        }
    }

    /// Frees the block in the order of `stream` alone.
    ///
    /// # Safety
    ///
    /// The contract of [`Block::free_on_unchecked`].
    #[inline]
    pub(crate) unsafe fn free_on_unchecked(self, stream: &Stream) -> Result<(), Error> {
        self.leave_scope();
        // SAFETY: the caller keeps the contract.
        unsafe { self.block.free_on_unchecked(stream) }
    }

    #[inline]
    fn leave_scope(&self) {
        if let Some(scope) = self.rest.as_ref().and_then(|rest| rest.scope.as_ref()) {
            scope.leave(self.block.address());
        }
    }
}

/// Frees a block behind the work of its own stream and of `streams`: each of them waits for the one
/// before, and the block is freed in the order of the last. Streams that ended cannot be named any
/// more, so the host waits for the device once.
#[cold]
fn behind(block: Block, streams: &[Stream], device: &Device) -> Result<(), Error> {
    match last_of(streams, device) {
        Ok(Some(last)) => block.free_on(last),
        Ok(None) => block.free(),
        Err(error) => {
            // A stream may still use the memory, so nothing may reuse it.
            std::mem::forget(block);
            Err(error)
        }
    }
}

/// Returns a stream that comes behind the work of all others that are alive.
fn last_of<'a>(streams: &'a [Stream], device: &Device) -> Result<Option<&'a Stream>, Error> {
    if streams.iter().any(Stream::is_retired) {
        device.synchronize()?;
    }
    let mut last: Option<&Stream> = None;
    for stream in streams.iter().filter(|stream| !stream.is_retired()) {
        if let Some(before) = last {
            stream.wait(&before.record()?)?;
        }
        last = Some(stream);
    }
    Ok(last)
}
