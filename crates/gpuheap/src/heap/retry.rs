//! Repeats a call to another library that ran out of memory, once after each reclaim step.

use gpuheap_driver::DriverError;

use crate::error::Error;
use crate::heap::Heap;
use crate::heap::recovery::{Attempt, Missing};

/// An error that may mean that memory ran out. [`Heap::retry`] repeats calls that return such an
/// error.
///
/// Wrap an error type of another crate in a type of your own:
///
/// ```
/// # mod library {
/// #     pub struct Error(pub i32);
/// #     pub fn load() -> Result<u32, Error> { Ok(7) }
/// # }
/// struct LibraryError(library::Error);
///
/// impl gpuheap::RunsOut for LibraryError {
///     fn is_out_of_memory(&self) -> bool {
///         self.0.0 == 2 // its code for memory that ran out
///     }
/// }
///
/// # fn main() -> Result<(), gpuheap::Error> {
/// # let heap = gpuheap::Device::open("emulated:1GiB")?.heap()?;
/// let loaded = heap.retry(|| library::load().map_err(LibraryError));
/// assert!(matches!(loaded, Ok(7)));
/// # Ok(()) }
/// ```
pub trait RunsOut {
    /// Returns `true` if memory ran out, so that the call may succeed after memory is given back.
    fn is_out_of_memory(&self) -> bool;

    /// Returns the number of missing bytes, if it is known.
    fn missing(&self) -> Option<u64> {
        None
    }
}

impl RunsOut for Error {
    fn is_out_of_memory(&self) -> bool {
        self.out_of_memory().is_some()
            || self.driver().is_some_and(|error| error.is_out_of_memory())
    }

    fn missing(&self) -> Option<u64> {
        self.out_of_memory().and_then(|evidence| evidence.short_by)
    }
}

impl RunsOut for DriverError {
    fn is_out_of_memory(&self) -> bool {
        DriverError::is_out_of_memory(self)
    }
}

impl Heap {
    /// Makes a call that may run out of device memory: loading a module, pinning memory, a library
    /// with its own allocator. If memory runs out, the heap runs its reclaim steps
    /// ([`ReclaimStep`](crate::ReclaimStep)), and repeats the call after each step. Before the last
    /// call, the heap gives back all its cached memory, of all kinds. No lock is held during a
    /// call, so the call may use the heap. May wait for the device.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// # let device = gpuheap::Device::open("emulated:1GiB")?;
    /// # let heap = device.heap()?;
    /// let other = gpuheap::Heap::new(&device)?;
    /// let stream = device.stream()?;
    /// let block = heap.retry(|| other.allocate(1 << 20, &stream))?;
    /// # drop(block);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The call's first error that is not about missing memory, or else its last error.
    pub fn retry<T, E: RunsOut>(&self, mut call: impl FnMut() -> Result<T, E>) -> Result<T, E> {
        let first = match call() {
            Err(error) if error.is_out_of_memory() => error,
            done => return done,
        };
        if self.inner().context.check_alive().is_err() {
            return Err(first);
        }
        let missing = |error: &E| Missing::on_device(error.missing().unwrap_or(u64::MAX));
        let first = missing(&first);
        let recovered = self.inner().device.retry_with_reclaim(first, |held, _| {
            if held.is_some() {
                return Attempt::Short(first);
            }
            match call() {
                Err(error) if error.is_out_of_memory() => Attempt::Short(missing(&error)),
                done => Attempt::Got(done),
            }
        });
        if let Ok(Ok(done)) = recovered {
            return done;
        }
        for store in self.inner().stores() {
            // Ignores a failure: if memory is still short, the next call fails.
            let _ = store.reclaim(u64::MAX);
        }
        call()
    }
}
