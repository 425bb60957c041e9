//! Targets: the place where arrays are made.

use std::sync::Arc;

use crate::array::scope_state::{self, ScopeState};
use crate::array::storage::Storage;
use crate::error::Error;
use crate::heap::Heap;
use crate::kind::MemoryKind;
use crate::stream::Stream;

/// The place where arrays are made: a heap, a stream, a kind of memory, and a setting for
/// zero-filling. Returned by [`Heap::on`], [`Heap::target`] and [`Scope`](crate::Scope). Arrays
/// made by the target of a scope belong to the scope. Cheap to clone.
///
/// ```
/// # fn main() -> Result<(), gpuheap::Error> {
/// use gpuheap::{Device, DeviceArray, MemoryKind};
///
/// let device = Device::open("emulated:1GiB")?;
/// let target = device.heap()?.target()?;
/// let a = target.array(&[1.0_f32, 2.0, 3.0])?;
/// let b: DeviceArray<i32, _> = target.kind(MemoryKind::Pinned).zeroed((2, 3))?;
/// assert_eq!((a.to_vec()?, b.shape()), (vec![1.0, 2.0, 3.0], &[2, 3][..]));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Target {
    pub(crate) heap: Heap,
    pub(crate) stream: Stream,
    pub(crate) kind: MemoryKind,
    pub(crate) zero_on_free: bool,
    pub(crate) zero_on_alloc: bool,
    scope: Option<Arc<ScopeState>>,
}

impl Heap {
    /// Returns a target for arrays that are first used on `stream`.
    pub fn on(&self, stream: &Stream) -> Target {
        Target::new(self.clone(), stream.clone())
    }

    /// Returns a target on the heap's own stream.
    ///
    /// All work on the target's arrays runs in one order. For threads that are to run concurrently,
    /// give each thread a [`Stream`] and use [`on`](Heap::on).
    ///
    /// # Errors
    ///
    /// A driver error. Only the first call can fail, because it makes the stream.
    pub fn target(&self) -> Result<Target, Error> {
        Ok(self.on(self.own_stream()?))
    }
}

impl Target {
    pub(crate) fn new(heap: Heap, stream: Stream) -> Target {
        Target {
            heap,
            stream,
            kind: MemoryKind::Device,
            zero_on_free: false,
            zero_on_alloc: false,
            scope: None,
        }
    }

    /// Returns the target, changed so that its arrays belong to `scope`.
    pub(crate) fn within(self, scope: Option<Arc<ScopeState>>) -> Target {
        Target { scope, ..self }
    }

    /// If the target has a scope, registers a storage with it, so that the scope's end frees the
    /// storage.
    pub(crate) fn join(&self, storage: &Arc<Storage>) -> Result<(), Error> {
        match self.scope() {
            None => Ok(()),
            Some(scope) => scope.add(storage),
        }
    }

    /// Returns the scope of arrays that this target makes on this thread.
    pub(crate) fn scope(&self) -> Option<Arc<ScopeState>> {
        scope_state::current(&self.heap, self.scope.as_ref())
    }

    pub(crate) fn check_scope(&self) -> Result<(), Error> {
        self.scope().map_or(Ok(()), |scope| scope.check_open())
    }

    /// Returns the target on another stream.
    pub fn on(&self, stream: &Stream) -> Target {
        Target { stream: stream.clone(), ..self.clone() }
    }

    /// Returns the target with another kind of memory.
    pub fn kind(&self, kind: MemoryKind) -> Target {
        Target { kind, ..self.clone() }
    }

    /// Sets whether freed arrays of the target are filled with zeros before their memory is reused.
    /// The bytes by which their sizes were rounded up are filled too. If the heap fills all freed
    /// memory, the setting has no effect.
    pub fn zero_on_free(&self, zero: bool) -> Target {
        Target { zero_on_free: zero, ..self.clone() }
    }

    /// Sets whether memory of the target's arrays is filled with zeros when it is allocated. The
    /// bytes by which their sizes are rounded up are filled too.
    pub fn zero_on_alloc(&self, zero: bool) -> Target {
        Target { zero_on_alloc: zero, ..self.clone() }
    }

    /// Returns the heap.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Returns the stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns the kind of memory.
    pub fn memory_kind(&self) -> MemoryKind {
        self.kind
    }
}
