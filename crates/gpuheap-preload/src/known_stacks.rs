//! Cache of unwound stacks. The unwinder takes some 1,800 instructions for a frame, and a
//! comparison with a cached stack takes four.
//!
//! A stack is known on two conditions. It was captured at the same stack pointer of the same
//! thread, and each return address is still in its place. If a frame has a variable size
//! (`alloca`), an old return address may still be in place by chance. The earlier stack is then
//! recorded instead.
//!
//! Only places in the thread's own stack are read. Stacks of fibres and of signal handlers may be
//! unmapped, and later stacks may have the same addresses. Calls on such stacks are always unwound.
#![cfg(target_arch = "x86_64")]

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Mutex;

use rustc_hash::FxHashMap;

/// Maximum number of stacks that are kept. Each takes 1.1 KiB at most. A training step of a
/// transformer with 12 layers has some hundreds.
const KEPT: usize = 1024;

/// Maximum number of kept stacks with the same stack pointer. Python calls most functions of a
/// library at one depth, so PyTorch's training step has some dozens with one stack pointer.
const KEPT_AT_ONE: usize = 64;

/// Return address, and the place in the stack that holds it.
#[derive(Clone, Copy, Debug)]
struct Slot {
    place: usize,
    address: u64,
}

#[derive(Debug)]
struct Known {
    thread: usize,
    slots: Box<[Slot]>,
}

/// Stacks by their stack pointers.
#[derive(Default)]
struct Stacks {
    by_pointer: FxHashMap<usize, Vec<Known>>,
    len: usize,
}

static KNOWN: Mutex<Option<Stacks>> = Mutex::new(None);

/// Return addresses of a stack that is being unwound, the innermost first.
pub(crate) struct Unwound {
    stack_pointer: usize,
    slots: Vec<Slot>,
}

impl Unwound {
    /// Creates an empty list of return addresses. The caller's stack pointer must not change until
    /// [`Unwound::keep`].
    pub(crate) fn new(stack_pointer: usize) -> Unwound {
        Unwound { stack_pointer, slots: Vec::with_capacity(32) }
    }

    /// Adds a frame by its return address. `stack_pointer` is the stack pointer after the return.
    pub(crate) fn push(&mut self, address: u64, stack_pointer: usize) {
        let place = stack_pointer.wrapping_sub(size_of::<u64>());
        // Leaves out the unwinder's own frames: they no longer exist when a later stack is
        // compared. Leaves out the outermost frame's null address: it is not stored on the stack.
        if place >= self.stack_pointer && address != 0 {
            self.slots.push(Slot { place, address });
        }
    }

    /// Keeps the stack for [`known`], if each return address is at the place that `push` computed.
    /// In a signal handler, one address is elsewhere: the kernel saved it with the registers.
    pub(crate) fn keep(self) {
        let Some(end) = stack_end(self.stack_pointer) else { return };
        let is_kept = self.slots.iter().all(|slot| slot.is_current(end));
        if is_kept && let Ok(mut known) = KNOWN.try_lock() {
            let stack = Known { thread: thread(), slots: self.slots.into_boxed_slice() };
            known.get_or_insert_default().add(self.stack_pointer, stack);
        }
    }
}

impl Stacks {
    /// Adds a stack. A full cache, or a full list of this stack pointer, is emptied first.
    fn add(&mut self, stack_pointer: usize, stack: Known) {
        if self.len >= KEPT {
            *self = Stacks::default();
        }
        let at_one = self.by_pointer.entry(stack_pointer).or_default();
        if at_one.len() >= KEPT_AT_ONE {
            self.len -= at_one.len();
            at_one.clear();
        }
        at_one.push(stack);
        self.len += 1;
    }
}

/// Looks for a kept stack that equals the current stack at this stack pointer. If found, calls
/// `add` with its return addresses until `add` returns `false`, and returns `true`.
pub(crate) fn known(stack_pointer: usize, mut add: impl FnMut(u64) -> bool) -> bool {
    let Some(end) = stack_end(stack_pointer) else { return false };
    // If another thread holds the lock, or held it at a fork, the stack counts as unknown.
    let Ok(known) = KNOWN.try_lock() else { return false };
    let Some(at_one) = known.as_ref().and_then(|known| known.by_pointer.get(&stack_pointer)) else {
        return false;
    };
    let thread = thread();
    let is_same = |found: &&Known| {
        found.thread == thread && found.slots.iter().all(|slot| slot.is_current(end))
    };
    // Tries the latest stack first. It was added because no earlier stack matched, so it is the
    // most likely to match again.
    let Some(found) = at_one.iter().rev().find(is_same) else { return false };
    let _ = found.slots.iter().all(|slot| add(slot.address));
    true
}

impl Slot {
    /// Returns `true` if the place is in the calling thread's stack and still holds the address.
    fn is_current(&self, end: StackEnd) -> bool {
        let place = std::ptr::with_exposed_provenance::<u64>(self.place);
        // SAFETY: the thread's stack is mapped from the stack pointer up to `end`. `Unwound::push`
        // drops places below the stack pointer. The first condition excludes places beyond `end`.
        self.place <= end.0 - size_of::<u64>() && unsafe { place.read_volatile() == self.address }
    }
}

/// End of the calling thread's stack. The stack is mapped from the stack pointer up to the end.
#[derive(Clone, Copy)]
struct StackEnd(usize);

/// Returns the end of the calling thread's stack; `None` if the stack pointer is in another stack.
fn stack_end(stack_pointer: usize) -> Option<StackEnd> {
    thread_local! {
        static STACK: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
    }
    let (start, end) = STACK.get().unwrap_or_else(|| {
        let found = stack_of_thread();
        STACK.set(Some((found.start, found.end)));
        (found.start, found.end)
    });
    (start..end).contains(&stack_pointer).then_some(StackEnd(end))
}

/// Returns the addresses of the calling thread's stack; an empty range if the system call fails.
fn stack_of_thread() -> Range<usize> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut start, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: the pointers are valid for writes, and the attributes are read and destroyed only
    // after they were written.
    let code = unsafe {
        let code = libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr());
        if code == 0 {
            libc::pthread_attr_getstack(attributes.as_ptr(), &mut start, &mut bytes);
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
        }
        code
    };
    if code == 0 { start.addr()..start.addr().saturating_add(bytes) } else { 0..0 }
}

/// Returns the thread's identifier. It differs between threads with different stacks. A later
/// thread on the same stack may get the same identifier.
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
