//! NCCL: communicators of any size, whose collectives act as if every rank had this rank's values.
//!
//! No rank waits for another one in a collective. Results above 1 MiB are left as they are: nothing
//! reads such sizes to decide, and a dry run keeps no content of that size.

use std::ffi::{c_int, c_uint, c_void};

use gpuheap_driver::{CUdeviceptr, CUresult, CUstream, Driver};

use crate::driver::driver;
use crate::report;

const SUCCESS: c_int = 0;
const UNHANDLED_CUDA_ERROR: c_int = 1;
const INVALID_ARGUMENT: c_int = 4;
/// Largest result that is written, bytes.
const MOST_BYTES: usize = 1 << 20;
/// First number of a reduction that a program makes: those of the library are below.
const OWN_REDUCTION: c_int = 5;
/// Colour of a rank that joins no part when a communicator is split.
const NO_COLOUR: c_int = -1;

/// Communicator.
struct Communicator {
    ranks: c_int,
    rank: c_int,
}

/// Identity that ranks pass to each other.
#[repr(C)]
pub(crate) struct UniqueId([u8; 128]);

/// Writes an identity.
///
/// # Safety
///
/// `id` is null or valid for a write.
// SAFETY: the name is NCCL's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    let mut made = UniqueId([0; 128]);
    made.0[..4].copy_from_slice(&std::process::id().to_ne_bytes());
    // SAFETY: the caller promises a pointer that is null or valid for a write.
    unsafe { put(id, made) }
}

/// Makes a communicator.
///
/// # Safety
///
/// `made` is null or valid for a write.
// SAFETY: the name is NCCL's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRank(
    made: *mut *mut c_void,
    ranks: c_int,
    _id: UniqueId,
    rank: c_int,
) -> c_int {
    // SAFETY: the caller promises the pointer.
    unsafe { make(made, ranks, rank) }
}

/// Makes a communicator with settings, which are not read.
///
/// # Safety
///
/// `made` is null or valid for a write.
// SAFETY: the name is NCCL's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRankConfig(
    made: *mut *mut c_void,
    ranks: c_int,
    _id: UniqueId,
    rank: c_int,
    _settings: *mut c_void,
) -> c_int {
    // SAFETY: the caller promises the pointer.
    unsafe { make(made, ranks, rank) }
}

/// Makes a communicator from several identities, which are not read.
///
/// # Safety
///
/// `made` is null or valid for a write.
// SAFETY: the name is NCCL's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRankScalable(
    made: *mut *mut c_void,
    ranks: c_int,
    rank: c_int,
    _count: c_int,
    _ids: *mut UniqueId,
    _settings: *mut c_void,
) -> c_int {
    // SAFETY: the caller promises the pointer.
    unsafe { make(made, ranks, rank) }
}

/// Makes the communicators of one process with several devices.
///
/// # Safety
///
/// `made` is null or valid for `count` writes.
// SAFETY: the name is NCCL's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitAll(
    made: *mut *mut c_void,
    count: c_int,
    _devices: *const c_int,
) -> c_int {
    for rank in 0..count.max(0) {
        let place = if made.is_null() { made } else { made.wrapping_add(rank as usize) };
        // SAFETY: the caller promises room for `count` communicators.
        let code = unsafe { make(place, count, rank) };
        if code != SUCCESS {
            return code;
        }
    }
    SUCCESS
}

/// Makes a communicator of a part of the ranks. Which ranks join is not known: the new one has the
/// size and the rank of the old one.
///
/// # Safety
///
/// `old` is null or a live communicator. `made` is null or valid for a write.
// SAFETY: the name is NCCL's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommSplit(
    old: *const c_void,
    colour: c_int,
    _key: c_int,
    made: *mut *mut c_void,
    _settings: *mut c_void,
) -> c_int {
    if colour == NO_COLOUR {
        // SAFETY: the caller promises the pointer.
        return unsafe { put(made, std::ptr::null_mut()) };
    }
    report::note("NCCL", "parts of a communicator (ncclCommSplit) have the size of the whole");
    // SAFETY: the caller promises a communicator that is null or live.
    match unsafe { old.cast::<Communicator>().as_ref() } {
        // SAFETY: the caller promises the pointer.
        Some(old) => unsafe { make(made, old.ranks, old.rank) },
        None => INVALID_ARGUMENT,
    }
}

/// Ends a communicator.
///
/// # Safety
///
/// `communicator` is null or live, and is not used afterwards.
// SAFETY: the name is NCCL's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommDestroy(communicator: *mut c_void) -> c_int {
    if communicator.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller promises a communicator that `make` made.
    drop(unsafe { Box::from_raw(communicator.cast::<Communicator>()) });
    SUCCESS
}

/// Ends a communicator whose work may not be done.
///
/// # Safety
///
/// `communicator` is null or live, and is not used afterwards.
// SAFETY: the name is NCCL's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommAbort(communicator: *mut c_void) -> c_int {
    // SAFETY: the caller's promise is the one that is asked for.
    unsafe { ncclCommDestroy(communicator) }
}

/// Writes the number of ranks.
///
/// # Safety
///
/// `communicator` is null or live. `count` is null or valid for a write.
// SAFETY: the name is NCCL's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommCount(communicator: *const c_void, count: *mut c_int) -> c_int {
    // SAFETY: the caller promises a communicator that is null or live.
    match unsafe { communicator.cast::<Communicator>().as_ref() } {
        // SAFETY: the caller promises the pointer.
        Some(communicator) => unsafe { put(count, communicator.ranks) },
        None => INVALID_ARGUMENT,
    }
}

/// Writes the rank.
///
/// # Safety
///
/// `communicator` is null or live. `rank` is null or valid for a write.
// SAFETY: the name is NCCL's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommUserRank(communicator: *const c_void, rank: *mut c_int) -> c_int {
    // SAFETY: the caller promises a communicator that is null or live.
    match unsafe { communicator.cast::<Communicator>().as_ref() } {
        // SAFETY: the caller promises the pointer.
        Some(communicator) => unsafe { put(rank, communicator.rank) },
        None => INVALID_ARGUMENT,
    }
}

/// Writes that no error happened.
///
/// # Safety
///
/// `error` is null or valid for a write.
// SAFETY: the name is NCCL's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommGetAsyncError(
    _communicator: *const c_void,
    error: *mut c_int,
) -> c_int {
    // SAFETY: the caller promises the pointer.
    unsafe { put(error, SUCCESS) }
}

/// Registers a buffer, without an effect.
///
/// # Safety
///
/// `handle` is null or valid for a write.
// SAFETY: the name is NCCL's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommRegister(
    _communicator: *const c_void,
    buffer: *mut c_void,
    _bytes: usize,
    handle: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller promises the pointer.
    unsafe { put(handle, buffer) }
}

/// Makes a reduction.
///
/// # Safety
///
/// `reduction` is null or valid for a write.
// SAFETY: the name is NCCL's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclRedOpCreatePreMulSum(
    reduction: *mut c_int,
    _scalar: *mut c_void,
    _kind: c_int,
    _residence: c_int,
    _communicator: *const c_void,
) -> c_int {
    // SAFETY: the caller promises the pointer.
    unsafe { put(reduction, OWN_REDUCTION) }
}

/// Takes memory from the device, as `cuMemAlloc`.
///
/// # Safety
///
/// `memory` is null or valid for a write.
// SAFETY: the name is NCCL's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclMemAlloc(memory: *mut *mut c_void, bytes: usize) -> c_int {
    let mut address = 0;
    // SAFETY: the result is a local variable.
    let taken = driver().map(|driver| unsafe { driver.cuMemAlloc_v2(&mut address, bytes) });
    match code_of(taken) {
        // SAFETY: the caller promises the pointer.
        SUCCESS => unsafe { put(memory, address as *mut c_void) },
        code => code,
    }
}

/// Returns memory to the device, as `cuMemFree`.
// SAFETY: the name is NCCL's, and this library replaces it.
#[unsafe(no_mangle)]
extern "C" fn ncclMemFree(memory: *mut c_void) -> c_int {
    // SAFETY: the driver checks the address.
    code_of(driver().map(|driver| unsafe { driver.cuMemFree_v2(memory as CUdeviceptr) }))
}

macro_rules! copies_own_values {
    ($($name:ident($($more:ident: $type:ty),*);)*) => {$(
        /// Writes this rank's values as the result.
        // SAFETY: the name is NCCL's, and this library replaces it.
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            sent: CUdeviceptr,
            result: CUdeviceptr,
            count: usize,
            kind: c_int,
            $($more: $type,)*
            _communicator: *const c_void,
            stream: CUstream,
        ) -> c_int {
            $(let _ = $more;)*
            copy(result, sent, count.saturating_mul(size_of_kind(kind)), stream)
        }
    )*};
}

copies_own_values! {
    ncclAllReduce(reduction: c_int);
    ncclReduce(reduction: c_int, root: c_int);
    ncclBroadcast(root: c_int);
}

/// Writes this rank's values as those of each rank.
///
/// # Safety
///
/// `communicator` is null or live.
// SAFETY: the name is NCCL's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclAllGather(
    sent: CUdeviceptr,
    result: CUdeviceptr,
    count: usize,
    kind: c_int,
    communicator: *const c_void,
    stream: CUstream,
) -> c_int {
    // SAFETY: the caller promises a communicator that is null or live.
    let Some(communicator) = (unsafe { communicator.cast::<Communicator>().as_ref() }) else {
        return INVALID_ARGUMENT;
    };
    let bytes = count.saturating_mul(size_of_kind(kind));
    for rank in 0..communicator.ranks.max(0) as u64 {
        let code = copy(result.wrapping_add(rank * bytes as u64), sent, bytes, stream);
        if code != SUCCESS {
            return code;
        }
    }
    SUCCESS
}

/// Writes this rank's part of its values as the result.
///
/// # Safety
///
/// `communicator` is null or live.
// SAFETY: the name is NCCL's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclReduceScatter(
    sent: CUdeviceptr,
    result: CUdeviceptr,
    count: usize,
    kind: c_int,
    _reduction: c_int,
    communicator: *const c_void,
    stream: CUstream,
) -> c_int {
    // SAFETY: the caller promises a communicator that is null or live.
    let Some(communicator) = (unsafe { communicator.cast::<Communicator>().as_ref() }) else {
        return INVALID_ARGUMENT;
    };
    let bytes = count.saturating_mul(size_of_kind(kind));
    let part = sent.wrapping_add(communicator.rank.max(0) as u64 * bytes as u64);
    copy(result, part, bytes, stream)
}

macro_rules! does_nothing {
    ($($name:ident)*) => {$(
        /// Succeeds without an effect.
        // SAFETY: the name is NCCL's, and this library replaces it. The function reads none of the
        // caller's arguments, which the caller's side removes in every C ABI of Unix.
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            SUCCESS
        }
    )*};
}

does_nothing!(
    ncclGroupStart ncclGroupEnd ncclSend ncclRecv ncclAlltoAll ncclBcast ncclCommFinalize
    ncclCommDeregister ncclRedOpDestroy
);

/// Makes a communicator.
///
/// # Safety
///
/// `made` is null or valid for a write.
unsafe fn make(made: *mut *mut c_void, ranks: c_int, rank: c_int) -> c_int {
    if made.is_null() || rank < 0 || rank >= ranks {
        return INVALID_ARGUMENT;
    }
    report::note("NCCL", "its own buffers are not in the figures");
    let communicator = Box::into_raw(Box::new(Communicator { ranks, rank }));
    // SAFETY: not null, so valid for a write.
    unsafe { put(made, communicator.cast()) }
}

/// Writes a result.
///
/// # Safety
///
/// `place` is null or valid for a write.
unsafe fn put<T>(place: *mut T, value: T) -> c_int {
    if place.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null, so valid for a write.
    unsafe { place.write(value) };
    SUCCESS
}

/// Copies within the device, if the result is small.
fn copy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) -> c_int {
    let Some(driver) = driver().filter(|_| to != from && bytes > 0 && bytes <= MOST_BYTES) else {
        return SUCCESS;
    };
    // SAFETY: the driver checks the addresses and the stream.
    code_of(Some(unsafe { driver.cuMemcpyDtoDAsync_v2(to, from, bytes, stream) }))
}

/// Returns NCCL's code for the driver's; `None` means that there is no driver.
fn code_of(code: Option<CUresult>) -> c_int {
    match code.is_some_and(|code| code.is_success()) {
        true => SUCCESS,
        false => UNHANDLED_CUDA_ERROR,
    }
}

/// Returns the bytes of a value of a kind, as `ncclDataType_t` numbers them.
fn size_of_kind(kind: c_int) -> usize {
    match kind as c_uint {
        0 | 1 | 10 | 11 => 1,
        6 | 9 => 2,
        4 | 5 | 8 => 8,
        _ => 4,
    }
}
