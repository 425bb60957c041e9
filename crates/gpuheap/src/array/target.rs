//! Where arrays are made.

use std::sync::Arc;

use crate::array::scope::{self, ScopeState};
use crate::array::storage::Storage;
use crate::error::Error;
use crate::heap::Heap;
use crate::kind::MemoryKind;
use crate::stream::Stream;

/// Where arrays are made: a heap, a stream, a kind of memory, and whether it is filled with zeros.
/// From [`Heap::on`] or [`Heap::target`], or from a [`Scope`](crate::Scope), to which what it makes
/// then belongs. Cheap to clone.
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
    /// Where arrays are made that are first used on `stream`.
    pub fn on(&self, stream: &Stream) -> Target {
        Target::new(self.clone(), stream.clone())
    }

    /// Where arrays are made, on a stream of the heap's own.
    ///
    /// All that is made with it runs in one order; threads that are to run beside each other each
    /// need a [`Stream`] and [`on`](Heap::on).
    ///
    /// # Errors
    ///
    /// A driver error, when the stream is made at the first call.
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

    /// The same, with what it makes belonging to a scope.
    pub(crate) fn within(self, scope: Option<Arc<ScopeState>>) -> Target {
        Target { scope, ..self }
    }

    /// Has the scope of what this makes, if any, free a storage at its end.
    pub(crate) fn join(&self, storage: &Arc<Storage>) -> Result<(), Error> {
        match self.scope() {
            None => Ok(()),
            Some(scope) => scope.add(storage),
        }
    }

    /// The scope to which what this makes on this thread belongs.
    pub(crate) fn scope(&self) -> Option<Arc<ScopeState>> {
        scope::of(&self.heap, self.scope.as_ref())
    }

    /// An error where the scope that this makes arrays in ended.
    pub(crate) fn check_scope(&self) -> Result<(), Error> {
        self.scope().map_or(Ok(()), |scope| scope.check_open())
    }

    /// The same heap, on another stream.
    pub fn on(&self, stream: &Stream) -> Target {
        Target { stream: stream.clone(), ..self.clone() }
    }

    /// The same heap and stream with another kind of memory.
    pub fn kind(&self, kind: MemoryKind) -> Target {
        Target { kind, ..self.clone() }
    }

    /// Sets whether freed arrays of the target are filled with zeros, rounding included, before
    /// anything else can have their memory. A heap that fills all that it frees does so whatever is
    /// set here.
    pub fn zero_on_free(&self, zero: bool) -> Target {
        Target { zero_on_free: zero, ..self.clone() }
    }

    /// Sets whether memory of the target's arrays is filled with zeros when it is allocated,
    /// rounding included.
    pub fn zero_on_alloc(&self, zero: bool) -> Target {
        Target { zero_on_alloc: zero, ..self.clone() }
    }

    /// The heap.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The kind of memory.
    pub fn memory_kind(&self) -> MemoryKind {
        self.kind
    }
}
