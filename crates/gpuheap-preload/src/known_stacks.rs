//! Stacks that were unwound before. The unwinder takes some 1,800 instructions for a frame, and a
//! comparison takes four.
//!
//! A stack is known if it was captured at the same stack pointer of the same thread, and each of
//! its return addresses is still where it was. Next to a frame of variable size (`alloca`), a
//! return address of an earlier call may lie there by chance. Then the earlier stack is recorded.
#![cfg(target_arch = "x86_64")]

use std::sync::Mutex;

/// Number of stacks that are kept. Each takes 1.1 KiB at most. A training step of a transformer
/// with 12 layers has some hundreds.
const KEPT: usize = 1024;

/// Return address, and the place in the stack that holds it.
#[derive(Clone, Copy, Debug)]
struct Slot {
    place: usize,
    address: u64,
}

/// Stack of a thread.
#[derive(Debug)]
struct Known {
    stack_pointer: usize,
    thread: usize,
    slots: Box<[Slot]>,
}

static KNOWN: Mutex<Vec<Option<Known>>> = Mutex::new(Vec::new());

/// Return addresses of a stack that is being unwound, the innermost first.
pub(crate) struct Unwound {
    stack_pointer: usize,
    slots: Vec<Slot>,
}

impl Unwound {
    /// Begins a stack. The caller's stack pointer does not change until [`Unwound::keep`].
    pub(crate) fn new(stack_pointer: usize) -> Unwound {
        Unwound { stack_pointer, slots: Vec::with_capacity(32) }
    }

    /// Adds a frame: the address that the program returns to, and the stack pointer after that.
    pub(crate) fn push(&mut self, address: u64, stack_pointer: usize) {
        let place = stack_pointer.wrapping_sub(size_of::<u64>());
        // Frames of the unwinder have ended when the stack is compared. The outermost frame may
        // have a null address, which is in no place.
        if place >= self.stack_pointer && address != 0 {
            self.slots.push(Slot { place, address });
        }
    }

    /// Keeps the stack for [`known`], if all return addresses are in their places. The return
    /// address of a signal handler is not.
    pub(crate) fn keep(self) {
        let is_kept = self.slots.iter().all(Slot::is_current);
        if is_kept && let Ok(mut known) = KNOWN.try_lock() {
            known.resize_with(KEPT, || None);
            let (stack_pointer, thread) = (self.stack_pointer, thread());
            let slots = self.slots.into_boxed_slice();
            known[index(stack_pointer)] = Some(Known { stack_pointer, thread, slots });
        }
    }
}

/// Calls `add` with each return address of the stack that was captured at this stack pointer, if
/// the stack is still the same. Returns `false` otherwise.
pub(crate) fn known(stack_pointer: usize, mut add: impl FnMut(u64) -> bool) -> bool {
    // A lock that another thread holds, also at the time of a fork, costs an unwinding.
    let Ok(known) = KNOWN.try_lock() else { return false };
    let found = known.get(index(stack_pointer)).and_then(Option::as_ref);
    let Some(found) = found
        .filter(|found| found.stack_pointer == stack_pointer && found.thread == thread())
        .filter(|found| found.slots.iter().all(Slot::is_current))
    else {
        return false;
    };
    let _ = found.slots.iter().all(|slot| add(slot.address));
    true
}

impl Slot {
    fn is_current(&self) -> bool {
        let place = std::ptr::with_exposed_provenance::<u64>(self.place);
        // SAFETY: the place is in the stack of the calling thread, above its stack pointer. The
        // thread's frames up to there are live: the places below are compared first.
        unsafe { place.read_volatile() == self.address }
    }
}

fn index(stack_pointer: usize) -> usize {
    // Stack pointers are multiples of 16.
    (stack_pointer >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54
}

/// Returns a number of the calling thread that also differs between stacks of threads.
fn thread() -> usize {
    // SAFETY: the call takes no arguments.
    unsafe { libc::pthread_self() as usize }
}

/// Returns the stack pointer of the caller.
#[inline(always)]
pub(crate) fn stack_pointer() -> usize {
    let pointer: usize;
    // SAFETY: the instruction copies a register.
    unsafe {
        std::arch::asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack, preserves_flags));
    }
    pointer
}
