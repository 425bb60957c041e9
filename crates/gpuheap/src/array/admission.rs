//! Admission: a check that each thread can set, and that runs before the thread makes an array in
//! device memory. A caller with its own memory budget, such as a scope of the Python package, uses
//! it to refuse arrays.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::error::{Error, ErrorKind};
use crate::kind::MemoryKind;

type Check = Rc<dyn Fn(u64) -> bool>;

thread_local! {
    /// `true` while [`admitted`] has set a check for this thread. Every new array reads this flag.
    static IS_SET: Cell<bool> = const { Cell::new(false) };
    static CHECK: RefCell<Option<Check>> = const { RefCell::new(None) };
}

/// Runs `work` with an admission check. While `work` runs, `check` is called with the size in bytes
/// of each array of this thread before the array takes device memory. If `check` returns `false`,
/// the array is not made.
#[doc(hidden)]
pub fn admitted<R>(check: impl Fn(u64) -> bool + 'static, work: impl FnOnce() -> R) -> R {
    let _end = Restore(replace(Some(Rc::new(check))));
    work()
}

/// Returns an error if the check that [`admitted`] set for this thread refuses an array of `bytes`.
#[inline]
pub(super) fn check(kind: MemoryKind, bytes: u64) -> Result<(), Error> {
    if !IS_SET.get() || kind != MemoryKind::Device {
        return Ok(());
    }
    let check = CHECK.with(|check| check.borrow().clone());
    match check.is_none_or(|check| check(bytes)) {
        true => Ok(()),
        false => Err(ErrorKind::OutOfMemory.error(format!("a budget refused {bytes} bytes"))),
    }
}

fn replace(check: Option<Check>) -> Option<Check> {
    IS_SET.set(check.is_some());
    CHECK.with(|now| std::mem::replace(&mut *now.borrow_mut(), check))
}

/// Guard that restores the previous check when it is dropped, also after a panic.
struct Restore(Option<Check>);

impl Drop for Restore {
    fn drop(&mut self) {
        replace(self.0.take());
    }
}

#[cfg(test)]
#[cfg(feature = "emulator")]
mod tests {
    use super::admitted;
    use crate::Device;

    #[test]
    fn refused_arrays_take_no_memory() {
        let heap = Device::open("emulated:1GiB").unwrap().heap().unwrap();
        let target = heap.target().unwrap();
        let made = admitted(
            |bytes| bytes <= 100,
            || (target.zeroed::<u8, _>(100).is_ok(), target.zeroed::<u8, _>(1 << 20).is_ok()),
        );
        assert_eq!(made, (true, false));
        assert!(heap.usage().unwrap().live_peak <= 100);
        assert!(target.zeroed::<u8, _>(101).is_ok());
    }
}
