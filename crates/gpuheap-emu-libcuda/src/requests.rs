//! Records refused requests for device memory, their callers, and the requests that followed.
//!
//! After a refusal, some programs continue, and others request another size. To distinguish them,
//! the stack of a refused request is compared with the stacks of later requests.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::CStr;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

use gpuheap_emu::{Request, take_request};

/// Maximum number of refused requests to keep, each from a different place in the program. Further
/// refusals are mostly repetitions.
const KEPT: usize = 64;
/// Maximum number of stack frames to keep. An unoptimised heap alone takes more than 40 frames.
const DEPTH: usize = 96;
/// Maximum number of program lines to report for one request.
const LINES: usize = 3;
/// Minimum part of a refused request, as a divisor, for a smaller request to count as another
/// attempt. Programs that try smaller sizes halve the size, or reduce it by a tenth.
const PART: u64 = 4;

/// gpuheap's other libraries that replace vendor libraries.
const STAND_INS: [&str; 2] = ["libgpuheap_emu_cudart.so", "libgpuheap_emu_libraries.so"];

/// Libraries of gpuheap that contain a heap: the C interface and the drop-in.
const HEAPS: [&str; 2] = ["libgpuheap_capi.so", DROP_IN];
const DROP_IN: &str = "libgpuheap_malloc.so";

/// Size, in bytes, of a request that always fails. If the drop-in's heap refuses a request, the
/// drop-in makes this request to the CUDA runtime. The runtime then stores the failure as the
/// thread's last error.
const REPEATED_FAILURE: u64 = u64::MAX / 2;

/// Name that a report shows for the called function if a heap reported the request with the
/// program's line. Without a line, the name is `gpuheap_allocate` or a CUDA function's.
pub(crate) const HEAP_REQUEST: &str = "gpuheap's allocation";
/// Library name to report for a heap's own requests to the driver.
const HEAP: &str = "gpuheap";
/// Number of frames in which [`Stack::is_within`] looks for a function that two stacks share. They
/// are the first frames after [`Stack::inner`] on the stack from which a heap reported a request.
const FRAMES_OF_HEAP: usize = 3;

static REFUSED: Mutex<VecDeque<Refused>> = Mutex::new(VecDeque::new());
/// `true` once a request was refused. Until then, granted requests are not compared with refusals.
static ANY: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Source line of the program, for the next request that a heap reports on this thread.
    static LINE: Cell<Option<String>> = const { Cell::new(None) };
}

struct Refused {
    request: Request,
    thread: ThreadId,
    stack: Stack,
    /// Number of times that this request was refused.
    times: u64,
    then: Then,
    /// `true` if the thread has made another request since the refusal.
    is_past: bool,
    /// `true` if the thread has enqueued device work since this request was refused. The program
    /// then continued without the memory, so a later request is not another attempt at this one.
    is_over: bool,
    /// `true` if a heap made this request to serve a request of the program. The heap has reported
    /// the program's request separately.
    is_inner: bool,
    caller: OnceLock<Caller>,
}

/// Request or step that followed a refused request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Nothing,
    /// The program repeated the request, and it was granted.
    Repeated,
    /// The program immediately tried smaller sizes, until this size, in bytes, was granted.
    Less(u64),
    /// The program completed another optimiser step.
    Step,
}

/// CUDA function that the program called, and the caller.
struct Caller {
    /// Name of the CUDA function.
    function: String,
    /// File name of the calling library or program.
    library: String,
    /// Program lines on the stack, innermost first.
    lines: Vec<String>,
}

/// Stack of a request, innermost frame first. A frame has a return address, and the start address
/// of its function.
struct Stack {
    addresses: Vec<usize>,
    functions: Vec<usize>,
    /// Number of innermost frames outside the program. They are not compared, because they depend
    /// on how a heap serves a request.
    inner: usize,
    /// Program line, if a heap reported it. Stacks with a line are compared by line only.
    line: Option<String>,
}

impl PartialEq for Stack {
    fn eq(&self, other: &Stack) -> bool {
        self.has_functions_of(other)
            && (self.line.is_some()
                || self.addresses[self.inner..] == other.addresses[other.inner..])
    }
}

impl Stack {
    #[inline(never)]
    fn here(request: &Request, line: Option<String>) -> Stack {
        let (mut addresses, mut functions) = (Vec::new(), Vec::new());
        backtrace::trace(|frame| {
            addresses.push(frame.ip().addr());
            functions.push(frame.symbol_address().addr());
            addresses.len() < DEPTH
        });
        let inner = if is_of_heap(request) {
            let place = |address: &&usize| place_of(**address);
            addresses
                .iter()
                .take_while(|at| place(at).is_some_and(|at| is_ours(&at, request)))
                .count()
        } else {
            0
        };
        Stack { addresses, functions, inner, line }
    }

    /// Returns `true` if both stacks have the same functions, or the same program line.
    fn has_functions_of(&self, other: &Stack) -> bool {
        match (&self.line, &other.line) {
            (None, None) => self.functions[self.inner..] == other.functions[other.inner..],
            (line, other) => line == other,
        }
    }

    /// Returns `true` if a heap made this stack's driver request while it served the call with the
    /// stack `heap`. Both stacks then contain the same function of the heap, with the same callers.
    fn is_within(&self, heap: &Stack) -> bool {
        let first = heap.inner;
        (first..heap.functions.len().min(first + FRAMES_OF_HEAP)).any(|at| {
            let function = heap.functions[at];
            let Some(own) = self.functions.iter().position(|&own| own == function) else {
                return false;
            };
            let (callers, own) = (&heap.addresses[at + 1..], &self.addresses[own + 1..]);
            let common = callers.len().min(own.len());
            common > 0 && callers[..common] == own[..common]
        })
    }
}

/// Sets the source line of the program, for the next request that a heap reports on this thread.
pub(crate) fn put_line(line: Option<String>) {
    LINE.set(line);
}

/// Records that the program completed an optimiser step after requests that a heap refused.
pub(crate) fn note_step() {
    if ANY.load(Ordering::Relaxed) {
        let mut refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
        let is_open =
            |known: &&mut Refused| is_of_heap(&known.request) && known.then == Then::Nothing;
        refused.iter_mut().filter(is_open).for_each(|known| known.then = Then::Step);
    }
}

/// Takes the request for device memory that this thread's last driver call made. Records the
/// request if it was refused. If it was granted, compares it with earlier refusals, to find out
/// whether the program continued. Returns `true` if the request was refused.
pub(crate) fn take() -> bool {
    // While the process exits, the thread-local variable may be gone.
    let line = LINE.try_with(Cell::take).unwrap_or_default();
    let request = take_request();
    let Some(request) = request else { return false };
    if request.is_granted && !ANY.load(Ordering::Relaxed) {
        return false;
    }
    let stack = Stack::here(&request, line);
    let thread = thread::current().id();
    // Skips the request that the drop-in makes after a refusal by its heap, only so that the CUDA
    // runtime stores an error. The heap has reported the real request.
    if request.bytes == REPEATED_FAILURE && caller(&stack, &request).library == DROP_IN {
        return false;
    }
    let mut refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
    add(&mut refused, request, stack, thread);
    !request.is_granted
}

fn add(refused: &mut VecDeque<Refused>, request: Request, stack: Stack, thread: ThreadId) {
    if request.is_after_work {
        for known in refused.iter_mut().filter(|known| known.thread == thread) {
            known.is_over = true;
        }
    }
    if is_of_heap(&request) {
        let own = refused.iter_mut().filter(|known| known.thread == thread);
        let own = own.filter(|known| !is_of_heap(&known.request));
        own.filter(|known| known.stack.is_within(&stack)).for_each(|known| known.is_inner = true);
    }
    match request.is_granted {
        true => granted(refused, &request, &stack, thread),
        false => {
            ANY.store(true, Ordering::Relaxed);
            keep(refused, request, stack, thread);
        }
    }
}

fn keep(refused: &mut VecDeque<Refused>, request: Request, stack: Stack, thread: ThreadId) {
    let known = refused.iter_mut().find(|known| {
        known.thread == thread
            && known.stack == stack
            && (known.request.bytes, known.request.place) == (request.bytes, request.place)
    });
    if let Some(known) = known {
        known.times += 1;
        known.is_over &= known.then == Then::Nothing;
        (known.then, known.is_past) = (Then::Nothing, false);
        return;
    }
    if refused.len() == KEPT {
        // Drops a refusal after which the program continued, because it is the least useful. If
        // there is no such refusal, drops the oldest.
        let known = refused.iter().position(|known| known.then != Then::Nothing);
        refused.remove(known.unwrap_or(0));
    }
    refused.push_back(Refused {
        request,
        thread,
        stack,
        times: 1,
        then: Then::Nothing,
        is_past: false,
        is_over: false,
        is_inner: false,
        caller: OnceLock::new(),
    });
}

/// Compares a granted request with earlier refused requests.
fn granted(refused: &mut VecDeque<Refused>, request: &Request, stack: &Stack, thread: ThreadId) {
    let own = |known: &&mut Refused| {
        known.thread == thread
            && known.request.device == request.device
            && known.then == Then::Nothing
            && !known.is_over
    };
    for known in refused.iter_mut().filter(own) {
        let is_repeated = known.stack.has_functions_of(stack)
            && (known.stack == *stack
                || known.request.place != 0 && known.request.place == request.place);
        if is_repeated && request.bytes >= known.request.bytes {
            known.then = Then::Repeated;
        }
    }
    let mut next = request.bytes;
    for known in refused.iter_mut().rev().filter(own).take_while(|known| !known.is_past) {
        let is_same = known.stack == *stack && known.request.place == request.place;
        let bytes = known.request.bytes;
        if !is_same || next >= bytes || next < bytes / PART {
            break;
        }
        (known.then, next) = (Then::Less(request.bytes), bytes);
    }
    let of_thread = |known: &&mut Refused| {
        // A heap makes its own requests while it serves the program's requests, so the two kinds
        // are not compared.
        known.thread == thread && is_of_heap(&known.request) == is_of_heap(request)
    };
    for known in refused.iter_mut().filter(of_thread) {
        known.is_past = true;
    }
}

/// Returns `true` if a heap of gpuheap, not the driver, granted or refused the request.
fn is_of_heap(request: &Request) -> bool {
    request.function.starts_with("gpuheap")
}

/// Returns `text` with blanks in place of characters that a JSON string must not contain.
pub(crate) fn escaped(text: &str) -> String {
    let special = |c: char| c.is_control() || c == '"' || c == '\\';
    text.chars().map(|c| if special(c) { ' ' } else { c }).collect()
}

/// Returns the refused requests as the elements of a JSON array.
pub(crate) fn json() -> String {
    let refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
    let one = |known: &Refused| {
        let Request { device, bytes, free_bytes, .. } = known.request;
        let caller = known.caller.get_or_init(|| caller(&known.stack, &known.request));
        let lines: Vec<String> =
            caller.lines.iter().map(|line| format!("\"{}\"", escaped(line))).collect();
        let mut text = format!(
            "{{\"function\": \"{}\", \"device\": {device}, \"requested\": {bytes}, \"free\": {free_bytes}, \
             \"times\": {}, \"library\": \"{}\", \"lines\": [{}]",
            escaped(&caller.function),
            known.times,
            if known.is_inner { HEAP.to_owned() } else { escaped(&caller.library) },
            lines.join(", "),
        );
        // A write to a string never fails.
        let _ = match known.then {
            Then::Nothing => write!(text, ", \"then\": \"nothing\"}}"),
            Then::Repeated => write!(text, ", \"then\": \"repeated\"}}"),
            Then::Step => write!(text, ", \"then\": \"step\"}}"),
            Then::Less(bytes) => write!(text, ", \"then\": \"less\", \"granted\": {bytes}}}"),
        };
        text
    };
    refused.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Finds the caller on a stack. It is the innermost frame that belongs to no stand-in for a vendor
/// library.
fn caller(stack: &Stack, request: &Request) -> Caller {
    let mut called = request.function.to_owned();
    if let Some(line) = &stack.line {
        return Caller { function: called, library: String::new(), lines: vec![line.clone()] };
    }
    let mut frames = stack.addresses.iter().copied().peekable();
    while let Some(place) = frames.peek().and_then(|address| place_of(*address)) {
        if !is_ours(&place, request) {
            break;
        }
        if let Some(symbol) = place.symbol.filter(|symbol| symbol.starts_with("cu")) {
            called = symbol;
        }
        frames.next();
    }
    let library = frames.peek().and_then(|address| place_of(*address));
    let library = library.map(|place| file_name(&place.file)).unwrap_or_default();
    let mut lines = Vec::new();
    for address in frames.take(LINES) {
        let line = line_of(address);
        if line.contains("__libc_start") || line.contains("in _start") {
            break;
        }
        lines.push(line);
    }
    Caller { function: called, library, lines }
}

/// Returns `true` if a frame belongs to a library that replaces a vendor's, or to the heap that
/// served the request.
fn is_ours(place: &Place, request: &Request) -> bool {
    is_stand_in(place) || (is_of_heap(request) && HEAPS.contains(&file_name(&place.file).as_str()))
}

/// Returns `true` if a frame belongs to this library or another stand-in for a vendor library.
fn is_stand_in(place: &Place) -> bool {
    let own = place_of(is_stand_in as *const () as usize).map(|place| place.base);
    Some(place.base) == own || STAND_INS.contains(&file_name(&place.file).as_str())
}

/// Returns the file name of the library or program that called the driver.
pub(crate) fn calling_library() -> String {
    let mut found = None;
    backtrace::trace(|frame| {
        found = place_of(frame.ip().addr()).filter(|place| !is_stand_in(place));
        found.is_none()
    });
    found.map(|place| file_name(&place.file)).unwrap_or_default()
}

/// Returns the line of a call. With debug information, it reads `take.c:28 in main`. Without, it
/// reads `main+0x4f in take` or `take+0x11d4`.
fn line_of(address: usize) -> String {
    let mut found: Option<String> = None;
    // The call instruction is before its return address.
    let call = std::ptr::without_provenance_mut(address.wrapping_sub(1));
    let (mut function, mut start) = (None, None);
    backtrace::resolve(call, |symbol| {
        if found.is_some() {
            return;
        }
        let name = symbol.name().map(|name| without_arguments(&format!("{name:#}")).to_owned());
        if let (Some(file), Some(line)) = (symbol.filename(), symbol.lineno()) {
            let of = name.as_deref().map(|name| format!(" in {name}")).unwrap_or_default();
            found = Some(format!("{}:{line}{of}", file.display()));
        }
        start = symbol.addr().map(|start| start.addr());
        function = function.take().or(name);
    });
    found.unwrap_or_else(|| {
        let place = place_of(address);
        let file = place.as_ref().map(|place| file_name(&place.file)).unwrap_or_default();
        match (function, start) {
            (Some(function), Some(start)) => {
                format!("{function}+{:#x} in {file}", address.saturating_sub(start))
            }
            (Some(function), None) => format!("{function} in {file}"),
            (None, _) => {
                let base = place.map_or(0, |place| place.base);
                format!("{file}+{:#x}", address.saturating_sub(base))
            }
        }
    })
}

/// Removes the arguments from the name of a C++ or Rust function.
fn without_arguments(name: &str) -> &str {
    const ANONYMOUS: &str = "(anonymous namespace)";
    let mut brackets = name.match_indices('(').map(|(at, _)| at);
    let end = brackets.find(|&at| at > 0 && !name[at..].starts_with(ANONYMOUS));
    &name[..end.unwrap_or(name.len())]
}

/// The loaded file that contains an address, and the exported symbol around the address, if any.
struct Place {
    file: String,
    base: usize,
    symbol: Option<String>,
}

fn place_of(address: usize) -> Option<Place> {
    // SAFETY: zeros are a valid value of this C structure.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    let address = std::ptr::without_provenance(address);
    // SAFETY: the function dereferences only the result pointer. It is valid for a write.
    if unsafe { libc::dladdr(address, &raw mut found) } == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the names are C strings of a loaded object. It stays loaded during the call.
    let text = |name| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    Some(Place {
        file: text(found.dli_fname),
        base: found.dli_fbase.addr(),
        symbol: (!found.dli_sname.is_null()).then(|| text(found.dli_sname)),
    })
}

fn file_name(path: &str) -> String {
    Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Makes requests in order, and returns [`Refused::then`] of each refused request. A tuple has
    /// the bytes, the address for the result, and the return addresses on the stack. Its last field
    /// is `true` if the request is granted.
    fn after(requests: &[(u64, u64, &[usize], bool)]) -> Vec<Then> {
        let thread = thread::current().id();
        let mut refused = VecDeque::new();
        for &(bytes, place, addresses, is_granted) in requests {
            let stack = Stack {
                addresses: addresses.to_vec(),
                functions: addresses.iter().map(|address| address / 100).collect(),
                inner: 0,
                line: None,
            };
            let request = request(bytes, place, is_granted);
            add(&mut refused, request, stack, thread);
        }
        refused.iter().map(|known| known.then).collect()
    }

    fn request(bytes: u64, place: u64, is_granted: bool) -> Request {
        Request::new("cuMemAlloc_v2", 0, bytes, place, is_granted)
    }

    #[test]
    fn names_stay_within_their_quotes() {
        assert_eq!(escaped("a \"b\" \\ c\n"), "a  b    c ");
    }

    #[test]
    fn name_has_no_arguments() {
        for (name, expected) in [
            ("main", "main"),
            ("take(void**, unsigned long)", "take"),
            ("a::(anonymous namespace)::b(int)", "a::(anonymous namespace)::b"),
            ("(anonymous namespace)::b()", "(anonymous namespace)::b"),
        ] {
            assert_eq!(without_arguments(name), expected);
        }
    }

    #[test]
    fn refusal_alone_stays_open() {
        let (main, other) = ([110, 900], [120, 900]);
        assert!(after(&[(60 * GIB, 1, &main, false)]) == [Then::Nothing]);
        // The next request comes from another call in the same function.
        let next = (GIB, 2, &other[..], true);
        assert!(after(&[(60 * GIB, 1, &main, false), next]) == [Then::Nothing]);
        let large = (61 * GIB, 2, &other[..], true);
        assert!(after(&[(60 * GIB, 1, &main, false), large]) == [Then::Nothing]);
    }

    #[test]
    fn repeated_request_is_made_good() {
        let (first, again) = ([110, 900], [150, 900]);
        let asked = (8 * GIB, 1, &first[..], false);
        assert!(after(&[asked, (8 * GIB, 1, &again, true)]) == [Then::Repeated]);
        let less = (7 * GIB, 1, &again[..], true);
        assert!(after(&[asked, less]) == [Then::Nothing]);
        let elsewhere = (8 * GIB, 1, &[250, 900][..], true);
        assert!(after(&[asked, elsewhere]) == [Then::Nothing]);
    }

    fn line_stack(line: &str) -> Stack {
        Stack { addresses: vec![1], functions: vec![1], inner: 0, line: Some(line.to_owned()) }
    }

    /// Makes requests to a heap in order. A tuple has the bytes and the line. Its last field is
    /// `true` if the request is granted.
    fn after_lines(requests: &[(u64, &str, bool)]) -> Vec<Then> {
        let (thread, mut refused) = (thread::current().id(), VecDeque::new());
        for &(bytes, line, is_granted) in requests {
            let request = Request::new(HEAP_REQUEST, 0, bytes, 0, is_granted);
            add(&mut refused, request, line_stack(line), thread);
        }
        refused.iter().map(|known| known.then).collect()
    }

    #[test]
    fn heap_owns_requests_within_its_call() {
        let stack = |addresses: &[usize], inner| Stack {
            addresses: addresses.to_vec(),
            functions: addresses.iter().map(|address| address / 100).collect(),
            inner,
            line: None,
        };
        // The number of a function is an address divided by 100. Functions 5 to 7 belong to the
        // heap, and function 9 belongs to the program.
        let report = stack(&[110, 220, 510, 610, 710, 920, 1010], 2);
        assert!(stack(&[110, 330, 410, 720, 920, 1010], 0).is_within(&report));
        assert!(!stack(&[110, 330, 410, 720, 930, 1010], 0).is_within(&report), "another call");
        assert!(!stack(&[110, 930, 1010], 0).is_within(&report), "the program's own");
    }

    #[test]
    fn heap_request_is_compared_by_line() {
        let asked = (60 * GIB, "a.py:1 in f", false);
        assert!(after_lines(&[asked, (60 * GIB, "a.py:2 in f", true)]) == [Then::Nothing]);
        assert!(after_lines(&[asked, (30 * GIB, "a.py:2 in f", true)]) == [Then::Nothing]);
        assert!(after_lines(&[asked, (60 * GIB, asked.1, true)]) == [Then::Repeated]);
        assert!(after_lines(&[asked, (30 * GIB, asked.1, true)]) == [Then::Less(30 * GIB)]);
    }

    #[test]
    fn refusal_before_work_stays_open() {
        let (thread, mut refused) = (thread::current().id(), VecDeque::new());
        let asked = |is_granted, is_after_work| {
            let mut request = request(8 * GIB, 1, is_granted);
            request.is_after_work = is_after_work;
            request
        };
        let stack = || Stack { addresses: vec![110], functions: vec![1], inner: 0, line: None };
        // Further requests change nothing, granted or not.
        for is_granted in [false, true, false, true] {
            add(&mut refused, asked(is_granted, is_granted), stack(), thread);
            assert!(refused.iter().all(|known: &Refused| known.then == Then::Nothing));
        }
    }

    #[test]
    fn immediate_smaller_request_replaces_refusal() {
        let at = [110, 900];
        let asked = |gib, is_granted| (gib * GIB, 1, &at[..], is_granted);
        let less = Then::Less(2 * GIB);
        assert!(after(&[asked(8, false), asked(4, false), asked(2, true)]) == [less, less]);
        // The program did not retry: another request came first, or the granted request is too
        // small.
        let other = (GIB, 2, &[120, 900][..], true);
        assert!(after(&[asked(8, false), other, asked(4, true)]) == [Then::Nothing]);
        assert!(after(&[asked(60, false), asked(2, true)]) == [Then::Nothing]);
    }
}
