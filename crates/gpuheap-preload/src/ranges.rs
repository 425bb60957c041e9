//! Records ranges that the program opens with NVTX.
//!
//! NVTX is a header library. Each binary of the program that includes NVTX has a table of NVTX's
//! functions. The first call loads the library that `NVTX_INJECTION64_PATH` names, and calls the
//! library's `InitializeInjectionNvtx2` with access to the table.
#![allow(non_snake_case, reason = "named as in C")]

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::threads::{Guard, without_panic};
use crate::{forks, recorder};

/// Maximum number of characters of a range's name.
const LONGEST: usize = 200;

/// Pointer to an NVTX function of any type.
type Function = *const c_void;

/// Table of callbacks, in the layout of NVTX's `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    bytes: usize,
    functions: unsafe extern "C" fn(c_int, *mut *mut *mut Function, *mut c_uint) -> c_int,
}

/// Attributes of a range, in the layout of NVTX's `nvtxEventAttributes_t`.
#[repr(C)]
struct Attributes {
    version: u16,
    bytes: u16,
    category: u32,
    color_kind: i32,
    color: u32,
    payload_kind: i32,
    reserved: i32,
    payload: u64,
    message_kind: i32,
    message: *const c_void,
}

/// Open range of the calling thread.
#[derive(Clone, Copy)]
struct Open {
    domain: usize,
    /// Number of enclosing ranges of the same domain.
    level: c_int,
    range: Range,
}

/// Identifies a range by its number in a process's recorder, and the process by [`forks::count`].
#[derive(Clone, Copy)]
struct Range {
    number: u32,
    forks: u32,
}

thread_local! {
    static OPEN: RefCell<Vec<Open>> = const { RefCell::new(Vec::new()) };
}

/// Name of a domain, or text that the program registered. The program may use its address as a
/// handle until the process ends, so the name is never freed.
struct Name {
    text: String,
    next: *const Name,
}

/// Lists of names. [`list_of`] selects a list. The lists take no lock, because a lock could stay
/// locked in a forked child.
static NAMES: [AtomicPtr<Name>; 256] = [const { AtomicPtr::new(ptr::null_mut()) }; 256];

/// Replaces functions of NVTX. A row is the module's number, the function's number, and this
/// library's function.
macro_rules! callbacks {
    ($($module:literal $number:literal $name:ident ($($arg:ident: $type:ty),*) $(-> $result:ty)? $body:block)*) => {
        $(#[allow(unused_unsafe, reason = "some rows read no memory")]
        unsafe extern "C" fn $name($($arg: $type),*) $(-> $result)? {
            // SAFETY: NVTX passes the program's arguments. Texts and attributes are null, or live
            // during the call. No panic reaches the program.
            without_panic(|| unsafe { $body })
        })*

        const CALLBACKS: &[(c_int, usize, fn() -> Function)] =
            &[$(($module, $number, || $name as *const c_void)),*];
    };
}

callbacks! {
    1 4 start_ex (attributes: *const Attributes) -> u64 { start(0, message(attributes)) }
    1 5 start_a (text: *const c_char) -> u64 { start(0, narrow(text)) }
    1 6 start_w (text: *const u32) -> u64 { start(0, wide(text)) }
    1 7 end (id: u64) { close(Range::from_id(id)) }
    1 8 push_ex (attributes: *const Attributes) -> c_int { push(0, message(attributes)) }
    1 9 push_a (text: *const c_char) -> c_int { push(0, narrow(text)) }
    1 10 push_w (text: *const u32) -> c_int { push(0, wide(text)) }
    1 11 pop () -> c_int { pop_in(0) }
    5 2 domain_start_ex (domain: usize, attributes: *const Attributes) -> u64 {
        start(domain, message(attributes))
    }
    5 3 domain_end (_domain: usize, id: u64) { close(Range::from_id(id)) }
    5 4 domain_push_ex (domain: usize, attributes: *const Attributes) -> c_int {
        push(domain, message(attributes))
    }
    5 5 domain_pop (domain: usize) -> c_int { pop_in(domain) }
    5 10 register_a (_domain: usize, text: *const c_char) -> usize { intern(narrow(text)) }
    5 11 register_w (_domain: usize, text: *const u32) -> usize { intern(wide(text)) }
    5 12 create_a (text: *const c_char) -> usize { intern(narrow(text)) }
    5 13 create_w (text: *const u32) -> usize { intern(wide(text)) }
}

/// Called by NVTX, with access to NVTX's tables. Returns 1 if ranges are recorded.
// SAFETY: only libraries that NVTX loads define this symbol, and `gpuheap run` sets only this one.
#[unsafe(no_mangle)]
extern "C" fn InitializeInjectionNvtx2(
    table: Option<unsafe extern "C" fn(u32) -> *const Callbacks>,
) -> c_int {
    const CALLBACKS_TABLE: u32 = 1;
    let Some(table) = table else { return 0 };
    // SAFETY: NVTX passes a function that returns the requested table, or null.
    let Some(callbacks) = (unsafe { table(CALLBACKS_TABLE).as_ref() }) else { return 0 };
    if callbacks.bytes < size_of::<Callbacks>() {
        return 0;
    }
    for &(module, number, function) in CALLBACKS {
        let (mut entries, mut count) = (std::ptr::null_mut(), 0);
        // SAFETY: `entries` and `count` live until the call returns. NVTX writes an array of
        // pointers to its functions, and its length. NVTX reads the functions after this call.
        unsafe {
            if (callbacks.functions)(module, &mut entries, &mut count) == 0 || entries.is_null() {
                continue;
            }
            let place = if number <= count as usize { *entries.add(number) } else { continue };
            if !place.is_null() {
                *place = function();
            }
        }
    }
    1
}

impl Range {
    /// Range that is not recorded.
    const NONE: Range = Range { number: 0, forks: 0 };

    fn from_id(id: u64) -> Range {
        Range { number: id as u32, forks: (id >> 32) as u32 }
    }

    fn id(self) -> u64 {
        u64::from(self.forks) << 32 | u64::from(self.number)
    }
}

/// Opens a range that belongs to no thread. Returns its id.
fn start(domain: usize, name: Option<String>) -> u64 {
    open(domain, name, false).id()
}

/// Opens a range of the calling thread. Returns the number of enclosing ranges.
fn push(domain: usize, name: Option<String>) -> c_int {
    let range = open(domain, name, true);
    let push = |open: &RefCell<Vec<Open>>| {
        let mut open = open.borrow_mut();
        let around = open.iter().rfind(|one| one.domain == domain);
        let level = around.map_or(0, |around| around.level + 1);
        open.push(Open { domain, level, range });
        level
    };
    // While the thread ends, its ranges are no longer counted.
    OPEN.try_with(push).unwrap_or(0)
}

/// Closes the calling thread's innermost NVTX range of a domain. Returns the range's level, or -1
/// if no range is open.
fn pop_in(domain: usize) -> c_int {
    let pop = |open: &RefCell<Vec<Open>>| {
        let mut open = open.borrow_mut();
        let at = open.iter().rposition(|one| one.domain == domain)?;
        Some(open.remove(at))
    };
    let popped = OPEN.try_with(pop).ok().flatten();
    popped.map_or(-1, |Open { range, level, .. }| {
        close(range);
        level
    })
}

fn open(domain: usize, name: Option<String>, of_thread: bool) -> Range {
    let Some(_guard) = Guard::enter() else { return Range::NONE };
    let Some(recorder) = recorder::current() else { return Range::NONE };
    let name = name.unwrap_or_default();
    let name = match interned(domain) {
        Some(domain) => format!("{domain}: {name}"),
        None => name,
    };
    let name: String = name.chars().take(LONGEST).collect();
    Range { number: recorder.range_started(name, of_thread), forks: forks::count() }
}

fn close(range: Range) {
    if range.number != 0
        && range.forks == forks::count()
        && let Some(_guard) = Guard::enter()
        && let Some(recorder) = recorder::existing()
    {
        recorder.range_ended(range.number);
    }
}

/// Returns the text of attributes. `None` if the attributes have no text.
///
/// # Safety
/// The attributes are null, or valid with their text.
unsafe fn message(attributes: *const Attributes) -> Option<String> {
    // SAFETY: the caller keeps the contract.
    let attributes = unsafe { attributes.as_ref() }?;
    // Versions 1 and 2 of the attributes have the same layout, so only the size is checked.
    if usize::from(attributes.bytes) < size_of::<Attributes>() {
        return None;
    }
    match attributes.message_kind {
        // SAFETY: the caller keeps the contract.
        1 => unsafe { narrow(attributes.message.cast()) },
        // SAFETY: the caller keeps the contract.
        2 => unsafe { wide(attributes.message.cast()) },
        3 => interned(attributes.message.addr()).map(str::to_owned),
        _ => None,
    }
}

/// Returns a text; `None` if it is null.
///
/// # Safety
/// The pointer is null, or a C string.
unsafe fn narrow(text: *const c_char) -> Option<String> {
    // SAFETY: the caller keeps the contract.
    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })?;
    Some(text.to_string_lossy().into_owned())
}

/// Returns a text of wide characters; `None` if it is null.
///
/// # Safety
/// The pointer is null, or the text ends with a zero.
unsafe fn wide(text: *const u32) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller keeps the contract.
    let letters = (0..).map(|at| unsafe { *text.add(at) }).take_while(|letter| *letter != 0);
    Some(letters.map(|letter| char::from_u32(letter).unwrap_or('?')).collect())
}

/// Keeps a text. Returns its address.
fn intern(text: Option<String>) -> usize {
    let text = text.unwrap_or_default();
    let name = Box::into_raw(Box::new(Name { text, next: ptr::null() }));
    let list = list_of(name.addr());
    let mut first = list.load(Ordering::Acquire);
    loop {
        // SAFETY: the name is not shared yet.
        unsafe { (*name).next = first };
        match list.compare_exchange_weak(first, name, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return name.addr(),
            Err(other) => first = other,
        }
    }
}

/// Returns the kept text with this address. `None` for other addresses.
fn interned(address: usize) -> Option<&'static str> {
    let mut name = list_of(address).load(Ordering::Acquire).cast_const();
    // SAFETY: names in the lists are never freed or changed.
    while let Some(found) = unsafe { name.as_ref() } {
        if name.addr() == address {
            return Some(&found.text);
        }
        name = found.next;
    }
    None
}

fn list_of(address: usize) -> &'static AtomicPtr<Name> {
    &NAMES[((address >> 5) ^ (address >> 13)) % NAMES.len()]
}
