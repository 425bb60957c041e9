//! Runs the work of every C function. Catches panics, and turns failures into statuses and texts.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use gpuheap::{Error, ErrorKind, Heap};

/// Status of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum gpuheap_status {
    /// The call succeeded.
    Ok = 0,
    /// Out of memory: the request failed after every reclaim step, or a driver call failed for lack
    /// of memory.
    OutOfMemory = 1,
    /// The request is invalid or cannot be met, for example because of a null pointer or a limit.
    Refused = 2,
    /// No allocation of this heap is at the address: it was freed before, or another heap or
    /// library owns it.
    UnknownAddress = 3,
    /// A driver call failed for a reason other than memory. The text contains the call's name and
    /// code.
    Driver = 4,
    /// The machine lacks the device or a usable driver.
    Unavailable = 5,
    /// The heap is no longer usable, because it was closed, this is a forked child, or the device
    /// was reset through gpuheap.
    Gone = 6,
    /// A bug in gpuheap was caught. Please report the text to gpuheap's issue tracker.
    Internal = 7,
}

/// Returns the text of the calling thread's last failed call, in UTF-8: the failed call, the place,
/// the numbers and a remedy. It may have several lines. The text is empty if no call of the thread
/// failed, and never null. It is valid until the thread's next failing call, or until the thread
/// ends.
#[unsafe(no_mangle)]
pub extern "C" fn gpuheap_last_error() -> *const c_char {
    match LAST.try_with(|last| last.borrow().as_ptr()) {
        Ok(last) => last,
        Err(_) => match LATE.get() {
            late if late.is_null() => c"".as_ptr(),
            late => late,
        },
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
    /// Error text of a call that failed after `LAST` was destroyed. Exit handlers of the process,
    /// and destructors at the thread's end, may make such calls. This variable has no destructor,
    /// so the text stays valid.
    static LATE: Cell<*mut c_char> = const { Cell::new(ptr::null_mut()) };
}

/// Stores the error text of this thread's last failed call.
fn keep_text(text: CString) {
    let mut text = Some(text);
    let kept = LAST.try_with(|last| *last.borrow_mut() = text.take().unwrap_or_default());
    if kept.is_err()
        && let Some(text) = text
    {
        let before = LATE.replace(text.into_raw());
        if !before.is_null() {
            // SAFETY: `into_raw` above made the pointer, and the new text has replaced it.
            drop(unsafe { CString::from_raw(before) });
        }
    }
}

/// Failure of a call. Its size is one pointer, so that successful calls stay cheap.
pub struct Failure(Box<(gpuheap_status, String)>);

impl Failure {
    #[cold]
    pub(crate) fn new(status: gpuheap_status, text: impl Into<String>) -> Failure {
        Failure(Box::new((status, text.into())))
    }

    /// Returns the status that C gets.
    pub fn status(&self) -> gpuheap_status {
        self.0.0
    }

    /// Returns the text of gpuheap_last_error, without the name of the function.
    pub fn text(&self) -> &str {
        &self.0.1
    }

    pub(crate) fn refused(text: impl Into<String>) -> Failure {
        Failure::new(gpuheap_status::Refused, text)
    }

    /// Makes the failure of a free that has already removed the allocation. The status is
    /// GPUHEAP_STATUS_DRIVER or GPUHEAP_STATUS_GONE: both mean that the allocation no longer
    /// exists. After any other status, the program would free it again.
    pub(crate) fn after_free(error: Error) -> Failure {
        let mut failure = Failure::from(error);
        if failure.0.0 != gpuheap_status::Gone {
            failure.0.0 = gpuheap_status::Driver;
        }
        failure
    }
}

impl From<Error> for Failure {
    #[cold]
    fn from(error: Error) -> Failure {
        // The error's own text names options of the Rust interface. The text for C programs names
        // the options of the C interface instead.
        let text = match error.out_of_memory() {
            Some(evidence) => evidence.text_naming(
                "gpuheap_options.hard_limit, gpuheap_set_limits or GPUHEAP_MEMORY_LIMIT",
            ),
            None if error.kind() == ErrorKind::NotTracked => {
                "allocations are not tracked; open the heap with gpuheap_options.tracking, or set \
                 GPUHEAP_TRACK to counts or backtraces"
                    .to_owned()
            }
            None => error.to_string(),
        };
        Failure::new(status_of(error.kind()), text)
    }
}

fn status_of(kind: ErrorKind) -> gpuheap_status {
    match kind {
        ErrorKind::OutOfMemory => gpuheap_status::OutOfMemory,
        ErrorKind::Gone => gpuheap_status::Gone,
        ErrorKind::NoDevice => gpuheap_status::Unavailable,
        ErrorKind::Driver => gpuheap_status::Driver,
        _ => gpuheap_status::Refused,
    }
}

/// Runs the work of the C function `name`.
#[inline]
pub(crate) fn enter(name: &str, work: impl FnOnce() -> Result<(), Failure>) -> gpuheap_status {
    // Unwind safety: locks protect all shared state. As everywhere in gpuheap, a thread that takes
    // a lock ignores that a panic has poisoned it.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => gpuheap_status::Ok,
        failed => store_failure(name, failed),
    }
}

/// Stores the error text of a call that failed or panicked, and returns the call's status.
#[cold]
fn store_failure(name: &str, failed: std::thread::Result<Result<(), Failure>>) -> gpuheap_status {
    let failure = match failed {
        Ok(Ok(())) => return gpuheap_status::Ok,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let said = match panic.downcast_ref::<&str>() {
                Some(text) => text,
                None => panic.downcast_ref::<String>().map_or("no text", String::as_str),
            };
            let text = format!("a bug in gpuheap, please report it: a panic said \"{said}\"");
            Failure::new(gpuheap_status::Internal, text)
        }
    };
    // A panic's text may contain a null byte, and `CString::new` refuses such a text. A space
    // replaces the null byte, so that the rest of the text is kept.
    let (status, text) = *failure.0;
    let text = CString::new(format!("{name}: {text}").replace('\0', " "));
    keep_text(text.unwrap_or_default());
    status
}

/// Reads a text from C; `None` if the pointer is null.
///
/// # Safety
///
/// `text` is null or a C string that lives for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller passes null or a C string that lives for `'a`, and `text` is not null.
    let text = unsafe { CStr::from_ptr(text) };
    match text.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(Failure::refused(format!(
            "{what} '{}' is not UTF-8; names are ASCII",
            text.to_string_lossy()
        ))),
    }
}

/// Writes a required result. Uses only the raw pointer, because C's variable need not be
/// initialised.
///
/// # Safety
///
/// `result` is null or valid for a write.
pub(crate) unsafe fn write<T>(result: *mut T, what: &str, value: T) -> Result<(), Failure> {
    if result.is_null() {
        return Err(Failure::refused(format!("{what} is a null pointer")));
    }
    // SAFETY: the caller passes null or a pointer valid for a write, and `result` is not null.
    unsafe { result.write(value) };
    Ok(())
}

/// Writes an optional result; does nothing if `result` is null.
///
/// # Safety
///
/// `result` is null or valid for a write.
pub(crate) unsafe fn write_if_wanted<T>(result: *mut T, value: T) {
    if !result.is_null() {
        // SAFETY: the caller passes null or a pointer valid for a write, and `result` is not null.
        unsafe { result.write(value) };
    }
}

/// Reports a request's result to `gpuheap dry-run`, and returns the result. `place` is the address
/// of the C variable that receives the pointer. The report names the requester by `place`. The heap
/// does not have that address, so the heap cannot make the report.
#[inline]
pub fn reported(
    heap: &Heap,
    bytes: u64,
    place: *mut *mut c_void,
    result: Result<u64, Failure>,
) -> Result<u64, Failure> {
    let is_refused =
        result.as_ref().is_err_and(|failure| failure.status() == gpuheap_status::OutOfMemory);
    if is_refused || result.is_ok() {
        heap.report_request(bytes, place.addr() as u64, !is_refused);
    }
    result
}

#[cfg(test)]
mod tests {
    use gpuheap_driver::CUresult;

    use super::*;

    fn last() -> String {
        // SAFETY: the pointer is never null, and this thread makes no other call before the copy.
        unsafe { CStr::from_ptr(gpuheap_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn panic_becomes_status_and_text() {
        let status = enter("gpuheap_test", || panic!("oh \0 no"));
        assert_eq!(status, gpuheap_status::Internal);
        assert!(last().starts_with("gpuheap_test: a bug in gpuheap"), "{}", last());
        assert!(last().ends_with("\"oh   no\""), "{}", last());
        assert_eq!(enter("gpuheap_test", || Ok(())), gpuheap_status::Ok);
        assert!(!last().is_empty(), "a call that succeeds says nothing");
    }

    /// If an error kind is added, this test fails until a status is assigned to the kind.
    #[test]
    fn each_error_kind_has_a_status() {
        use ErrorKind::*;
        let refused = [
            HostResources,
            Freed,
            Busy,
            Ended,
            WrongShape,
            WrongType,
            WrongDevice,
            WrongMemory,
            Overlap,
            TooLarge,
            InvalidData,
            InvalidArgument,
            BadPointer,
            BadSetting,
            NotTracked,
            Unsupported,
            StreamUnusable,
            Capturing,
            Panicked,
        ];
        let others = [
            (OutOfMemory, gpuheap_status::OutOfMemory),
            (Gone, gpuheap_status::Gone),
            (NoDevice, gpuheap_status::Unavailable),
            (Driver, gpuheap_status::Driver),
        ];
        let stated = refused.map(|kind| (kind, gpuheap_status::Refused)).into_iter().chain(others);
        let stated: Vec<_> = stated.collect();
        assert_eq!(stated.len(), ErrorKind::ALL.len());
        for kind in ErrorKind::ALL {
            assert!(stated.contains(&(*kind, status_of(*kind))), "{kind:?}");
        }
    }

    /// Uses errors that the library constructs.
    #[test]
    fn error_kind_decides_the_status() {
        let device = gpuheap::Device::open("emulated:64MiB").unwrap();
        let heap = gpuheap::Heap::builder(&device).without_environment().build().unwrap();
        let stream = device.stream().unwrap();
        let failed = |symbol, code| {
            let fault = gpuheap::emu::Fault::nth(symbol, 1, code);
            device.emulator().unwrap().set_faults(gpuheap::emu::FaultPlan::new([fault]));
            device.synchronize().unwrap_err()
        };
        let none_left = failed("cuCtxSynchronize", CUresult::ERROR_OUT_OF_MEMORY);
        let unknown = failed("cuCtxSynchronize", CUresult::ERROR_UNKNOWN);
        for (error, status) in [
            (heap.allocate(1 << 30, &stream).unwrap_err(), gpuheap_status::OutOfMemory),
            (none_left, gpuheap_status::OutOfMemory),
            (unknown, gpuheap_status::Driver),
            (gpuheap::Device::open("cuda:4711").unwrap_err(), gpuheap_status::Unavailable),
            (gpuheap::Device::open("gpu0").unwrap_err(), gpuheap_status::Refused),
        ] {
            let kind = error.kind();
            assert_eq!(Failure::from(error).0.0, status, "{kind:?}");
        }
    }

    #[test]
    fn each_thread_has_its_own_text() {
        enter("gpuheap_test", || Err(Failure::refused("mine")));
        assert_eq!(std::thread::spawn(last).join().unwrap(), "");
        assert_eq!(last(), "gpuheap_test: mine");
    }
}
