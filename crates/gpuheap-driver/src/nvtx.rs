//! Names memory for profilers through the memory extension of NVTX.
//!
//! NVTX is a header. A program that includes it loads the profiler's library from
//! `NVTX_INJECTION64_PATH`. The program passes that library a table with a slot for each function
//! of the extension. This module does the same without the header. If the profiler lacks a
//! function, the function's slot stays empty.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{CString, c_char, c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::Library;

/// Environment variable that contains the path of the profiler's library.
const INJECTION: &str = "NVTX_INJECTION64_PATH";

/// Function that the profiler's library exports. gpuheap passes a table to it, and the profiler
/// stores its functions in the table.
const INITIALIZE: &[u8] = b"InitializeInjectionNvtxExtension\0";

/// Version of NVTX. `MODULE` and `COMPATIBILITY` identify the memory extension and its version.
const NVTX: u16 = 3;
const MODULE: u16 = 1;
const COMPATIBILITY: u16 = 0x0102;

/// `NVTX_MEM_HEAP_USAGE_TYPE_LAYOUT`: programs may also use memory outside of regions. So tools
/// that check accesses do not report accesses between blocks.
const LAYOUT: u32 = 2;
/// `NVTX_MEM_TYPE_VIRTUAL_ADDRESS`.
const ADDRESSES: u32 = 1;
/// `NVTX_MESSAGE_TYPE_ASCII`.
const TEXT: u32 = 1;
/// `NVTX_MEM_REGION_REF_TYPE_POINTER`.
const BY_POINTER: u32 = 1;
/// Largest value of a slot without a function: 0 is unset, and 1 is disabled.
const DISABLED: usize = 1;

/// Number of slots in the table of the memory extension's functions. The first slot is unused.
const SLOTS: usize = 17;

/// Handle of a heap in the profiler. Null stands for the whole process.
type Heap = *mut c_void;
/// Handle of an NVTX domain; null for the default domain.
type Domain = *mut c_void;

/// `nvtxExtModuleSegment_t`.
#[repr(C)]
struct ModuleSegment {
    number: usize,
    slots: usize,
    functions: *mut usize,
}

/// `nvtxExtModuleInfo_t`.
#[repr(C)]
struct Module {
    version: u16,
    bytes: u16,
    module: u16,
    compatibility: u16,
    segments: usize,
    segment: *mut ModuleSegment,
    exports: *const c_void,
    info: *const c_void,
}

/// `nvtxMemVirtualRangeDesc_t`.
#[repr(C)]
struct Range {
    bytes: usize,
    start: *const c_void,
}

/// `nvtxMemHeapDesc_t`.
#[repr(C)]
struct HeapDescription {
    compatibility: u16,
    bytes: u16,
    reserved: u32,
    usage: u32,
    kind: u32,
    range_bytes: usize,
    range: *const Range,
    category: u32,
    name_kind: u32,
    name: *const c_char,
}

/// `nvtxMemRegionsRegisterBatch_t`.
#[repr(C)]
struct Regions {
    compatibility: u16,
    bytes: u16,
    kind: u32,
    heap: Heap,
    count: usize,
    range_bytes: usize,
    ranges: *const Range,
    handles: *mut c_void,
}

/// `nvtxMemRegionsUnregisterBatch_t`.
#[repr(C)]
struct Ended {
    compatibility: u16,
    bytes: u16,
    by: u32,
    count: usize,
    region_bytes: usize,
    regions: *const *const c_void,
}

/// `nvtxMemRegionNameDesc_t`.
#[repr(C)]
struct RegionName {
    by: u32,
    name_kind: u32,
    region: *const c_void,
    name: *const c_char,
    category: u32,
    reserved: u32,
}

/// `nvtxMemRegionsNameBatch_t`.
#[repr(C)]
struct RegionNames {
    compatibility: u16,
    bytes: u16,
    reserved: u32,
    count: usize,
    name_bytes: usize,
    names: *const RegionName,
    reserved_too: usize,
}

type Initialize = unsafe extern "C" fn(*mut Module) -> c_int;
type Register<T, R> = unsafe extern "C" fn(Domain, *const T) -> R;
type EndHeap = unsafe extern "C" fn(Domain, Heap);

/// Connection to the profiler of this process, for naming memory.
#[derive(Debug)]
pub struct MemoryNames {
    register_heap: Option<Register<HeapDescription, Heap>>,
    end_heap: Option<EndHeap>,
    register_regions: Option<Register<Regions, ()>>,
    end_regions: Option<Register<Ended, ()>>,
    name_regions: Option<Register<RegionNames, ()>>,
    /// Pools by their addresses. A pool has its size in bytes, and its handle in the profiler.
    pools: Mutex<BTreeMap<u64, (u64, usize)>>,
}

impl MemoryNames {
    /// Returns the connection to the profiler. The first call loads the profiler's library. Returns
    /// `None` if there is no profiler, or if it accepts no names of memory.
    pub fn get() -> Option<&'static MemoryNames> {
        static NAMES: OnceLock<Option<MemoryNames>> = OnceLock::new();
        NAMES.get_or_init(MemoryNames::load).as_ref()
    }

    fn load() -> Option<MemoryNames> {
        let path = env::var_os(INJECTION).filter(|path| !path.is_empty())?;
        // SAFETY: loading runs the constructors of a library that the user chose for NVTX. NVTX's
        // own header would load it in the same way.
        let library = unsafe { Library::new(path) }.ok()?;
        // SAFETY: a library for NVTX has a function of this type by this name.
        let initialize = unsafe { library.get::<Initialize>(INITIALIZE) };
        let initialize = *initialize.ok()?;
        // The functions may be called until the process ends.
        mem::forget(library);
        let mut functions = [0_usize; SLOTS];
        let mut segment =
            ModuleSegment { number: 0, slots: SLOTS, functions: functions.as_mut_ptr() };
        let mut module = Module {
            version: NVTX,
            bytes: size_of::<Module>() as u16,
            module: MODULE,
            compatibility: COMPATIBILITY,
            segments: 1,
            segment: &raw mut segment,
            exports: ptr::null(),
            info: ptr::null(),
        };
        // SAFETY: the table and all that it points to are valid until the call returns.
        if unsafe { initialize(&raw mut module) } == 0 {
            return None;
        }
        // SAFETY: the profiler stored its functions in these slots. Each function has the type that
        // NVTX's memory extension declares for its slot.
        let names = unsafe {
            MemoryNames {
                register_heap: function(functions[1]),
                end_heap: function(functions[2]),
                register_regions: function(functions[4]),
                end_regions: function(functions[6]),
                name_regions: function(functions[7]),
                pools: Mutex::default(),
            }
        };
        (names.register_heap.is_some() || names.register_regions.is_some()).then_some(names)
    }

    /// Names a range of addresses in which a pool hands out blocks.
    pub fn add_pool(&self, address: u64, bytes: u64, name: &str) {
        let Some(register) = self.register_heap else { return };
        let name = c_text(name);
        let range = range(address, bytes);
        let description = HeapDescription {
            compatibility: COMPATIBILITY,
            bytes: size_of::<HeapDescription>() as u16,
            reserved: 0,
            usage: LAYOUT,
            kind: ADDRESSES,
            range_bytes: size_of::<Range>(),
            range: &raw const range,
            category: 0,
            name_kind: TEXT,
            name: name.as_ptr(),
        };
        // SAFETY: the description and all that it points to are valid until the call returns.
        let heap = unsafe { register(ptr::null_mut(), &raw const description) };
        self.pools().insert(address, (bytes, heap.expose_provenance()));
    }

    /// Ends a range that [`add_pool`](MemoryNames::add_pool) named. Call this before the range's
    /// addresses are given back.
    pub fn remove_pool(&self, address: u64) {
        let Some((_, heap)) = self.pools().remove(&address) else { return };
        if let Some(end) = self.end_heap {
            // SAFETY: the profiler returned the handle, and it is not used again.
            unsafe { end(ptr::null_mut(), ptr::with_exposed_provenance_mut(heap)) }
        }
    }

    /// Names a block in the pool that contains the block's address.
    pub fn add_block(&self, address: u64, bytes: u64, name: &str) {
        let heap = match self.pools().range(..=address).next_back() {
            Some((start, (length, heap))) if address - start < *length => *heap,
            _ => 0,
        };
        let range = range(address, bytes);
        let regions = Regions {
            compatibility: COMPATIBILITY,
            bytes: size_of::<Regions>() as u16,
            kind: ADDRESSES,
            heap: ptr::with_exposed_provenance_mut(heap),
            count: 1,
            range_bytes: size_of::<Range>(),
            ranges: &raw const range,
            handles: ptr::null_mut(),
        };
        if let Some(register) = self.register_regions {
            // SAFETY: the description and all that it points to are valid until the call returns.
            unsafe { register(ptr::null_mut(), &raw const regions) }
        }
        let text = c_text(name);
        let region_name = RegionName {
            by: BY_POINTER,
            name_kind: TEXT,
            region: range.start,
            name: text.as_ptr(),
            category: 0,
            reserved: 0,
        };
        let names = RegionNames {
            compatibility: COMPATIBILITY,
            bytes: size_of::<RegionNames>() as u16,
            reserved: 0,
            count: 1,
            name_bytes: size_of::<RegionName>(),
            names: &raw const region_name,
            reserved_too: 0,
        };
        if let Some(name) = self.name_regions {
            // SAFETY: the names and all that they point to are valid until the call returns.
            unsafe { name(ptr::null_mut(), &raw const names) }
        }
    }

    /// Ends a block that [`add_block`](MemoryNames::add_block) named. Call this before another
    /// block can get the address.
    pub fn remove_block(&self, address: u64) {
        let region = range(address, 0).start;
        let ended = Ended {
            compatibility: COMPATIBILITY,
            bytes: size_of::<Ended>() as u16,
            by: BY_POINTER,
            count: 1,
            region_bytes: size_of::<*const c_void>(),
            regions: &raw const region,
        };
        if let Some(end) = self.end_regions {
            // SAFETY: the batch and the pointer in it are valid until the call returns.
            unsafe { end(ptr::null_mut(), &raw const ended) }
        }
    }

    fn pools(&self) -> MutexGuard<'_, BTreeMap<u64, (u64, usize)>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the function in a slot; `None` if the profiler left the slot empty.
///
/// # Safety
/// `F` is a pointer to a function, and a function in the slot has its type.
unsafe fn function<F: Copy>(slot: usize) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    // SAFETY: the caller guarantees the type. The sizes are equal, and a function is not null.
    (slot > DISABLED).then(|| unsafe { mem::transmute_copy(&slot) })
}

fn range(address: u64, bytes: u64) -> Range {
    let start = ptr::without_provenance(address as usize);
    Range { bytes: usize::try_from(bytes).unwrap_or(usize::MAX), start }
}

/// Returns a text up to its first zero byte.
fn c_text(text: &str) -> CString {
    let text = text.split('\0').next().unwrap_or_default();
    CString::new(text).unwrap_or_default()
}
