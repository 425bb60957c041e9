//! The types of the driver API, laid out as `cuda.h` lays them out, under its names.
//!
//! Handles are integers of a pointer's size: they are opaque, compared and passed on, never
//! followed. Enumerations are integer newtypes, so that a value from a newer driver is a number
//! and not undefined behaviour.
#![allow(non_camel_case_types, non_snake_case)]

use std::ffi::{c_int, c_uint, c_void};

/// A device's number in the driver's order.
pub type CUdevice = c_int;
/// An address that the device sees.
pub type CUdeviceptr = u64;
/// Physical memory of the virtual memory management.
pub type CUmemGenericAllocationHandle = u64;
/// A function that the driver calls when a stream gets to it.
pub type CUhostFn = Option<unsafe extern "C" fn(data: *mut c_void)>;
/// Function of a program's that a stream runs on the host, told which stream and with what status.
pub type CUstreamCallback =
    Option<unsafe extern "C" fn(stream: CUstream, status: crate::CUresult, data: *mut c_void)>;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(transparent)]
        pub struct $name(pub usize);

        impl $name {
            /// The null handle.
            pub const NULL: $name = $name(0);

            /// Returns whether this is the null handle.
            pub fn is_null(self) -> bool {
                self.0 == 0
            }
        }
    )*};
}

handles! {
    /// A context.
    CUcontext;
    /// A context of a part of a device.
    CUgreenCtx;
    /// A stream. Null is the default stream.
    CUstream;
    /// An event.
    CUevent;
    /// A stream-ordered memory pool.
    CUmemoryPool;
    /// A loaded module.
    CUmodule;
    /// A kernel.
    CUfunction;
    /// A graph of work.
    CUgraph;
    /// A graph that can be launched.
    CUgraphExec;
}

impl CUstream {
    /// The default stream that waits for all blocking streams, by its explicit handle.
    pub const LEGACY: CUstream = CUstream(1);
    /// The calling thread's own default stream.
    pub const PER_THREAD: CUstream = CUstream(2);
}

macro_rules! integers {
    ($($(#[$doc:meta])* $type:ident { $($(#[$constant_doc:meta])* $name:ident = $value:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $type(pub c_int);

        impl $type { $($(#[$constant_doc])* pub const $name: $type = $type($value);)* }
    )*};
}

integers! {
    /// A property of a device.
    CUdevice_attribute {
        /// Threads in a block at most.
        MAX_THREADS_PER_BLOCK = 1,
        /// Threads in a block at most, first dimension.
        MAX_BLOCK_DIM_X = 2,
        /// Second dimension.
        MAX_BLOCK_DIM_Y = 3,
        /// Third dimension.
        MAX_BLOCK_DIM_Z = 4,
        /// Blocks in a grid at most, first dimension.
        MAX_GRID_DIM_X = 5,
        /// Second dimension.
        MAX_GRID_DIM_Y = 6,
        /// Third dimension.
        MAX_GRID_DIM_Z = 7,
        /// Shared memory of a block, bytes.
        MAX_SHARED_MEMORY_PER_BLOCK = 8,
        /// Threads of a warp.
        WARP_SIZE = 10,
        /// Largest pitch of a copy, bytes.
        MAX_PITCH = 11,
        /// Clock, kHz.
        CLOCK_RATE = 13,
        /// Multiprocessors.
        MULTIPROCESSOR_COUNT = 16,
        /// 1 if host memory is the device's own.
        INTEGRATED = 18,
        /// 1 if host memory can be mapped for the device.
        CAN_MAP_HOST_MEMORY = 19,
        /// 0: any number of contexts.
        COMPUTE_MODE = 20,
        /// 1 if kernels run beside each other.
        CONCURRENT_KERNELS = 31,
        /// Place on the PCI bus: bus.
        PCI_BUS_ID = 33,
        /// Place on the PCI bus: device.
        PCI_DEVICE_ID = 34,
        /// Memory clock, kHz.
        MEMORY_CLOCK_RATE = 36,
        /// Memory bus, bits.
        GLOBAL_MEMORY_BUS_WIDTH = 37,
        /// L2 cache, bytes.
        L2_CACHE_SIZE = 38,
        /// Threads on a multiprocessor at most.
        MAX_THREADS_PER_MULTIPROCESSOR = 39,
        /// Copy engines.
        ASYNC_ENGINE_COUNT = 40,
        /// 1 if host and device share one address space.
        UNIFIED_ADDRESSING = 41,
        /// Place on the PCI bus: domain.
        PCI_DOMAIN_ID = 50,
        /// Compute capability, major.
        COMPUTE_CAPABILITY_MAJOR = 75,
        /// Compute capability, minor.
        COMPUTE_CAPABILITY_MINOR = 76,
        /// 1 if streams have priorities.
        STREAM_PRIORITIES_SUPPORTED = 78,
        /// 1 if managed memory can be had.
        MANAGED_MEMORY = 83,
        /// 1 if the device is one of several on a board.
        MULTI_GPU_BOARD = 84,
        /// 1 if the device reads pageable host memory.
        PAGEABLE_MEMORY_ACCESS = 88,
        /// 1 if host and device may touch managed memory at the same time.
        CONCURRENT_MANAGED_ACCESS = 89,
        /// 1 if the device sees registered host memory at the host's address.
        CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
        /// 1 if host memory can be registered.
        HOST_REGISTER_SUPPORTED = 99,
        /// 1 if pageable access goes through the host's page tables.
        PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES = 100,
        /// 1 if the host reads managed memory in place.
        DIRECT_MANAGED_MEM_ACCESS_FROM_HOST = 101,
        /// 1 if there is virtual memory management.
        VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
        /// 1 if physical memory can be shared by file descriptor.
        HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
        /// 1 if memory can be compressed.
        GENERIC_COMPRESSION_SUPPORTED = 107,
        /// 1 if physical memory can be made for GPUDirect RDMA.
        GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
        /// 1 if there are stream-ordered pools.
        MEMORY_POOLS_SUPPORTED = 115,
        /// 1 if GPUDirect RDMA works.
        GPU_DIRECT_RDMA_SUPPORTED = 116,
        /// How pools can be shared, as bits.
        MEMPOOL_SUPPORTED_HANDLE_TYPES = 119,
    }
    /// A property of the memory that a pointer points to.
    CUpointer_attribute {
        /// `CUcontext` it was allocated in.
        CONTEXT = 1,
        /// `c_uint`: a [`CUmemorytype`].
        MEMORY_TYPE = 2,
        /// Where the device sees it.
        DEVICE_POINTER = 3,
        /// Where the host sees it.
        HOST_POINTER = 4,
        /// `c_uint`: whether synchronous copies always wait.
        SYNC_MEMOPS = 6,
        /// `u64`: a number that no other allocation ever has.
        BUFFER_ID = 7,
        /// `c_uint`: whether it is managed memory.
        IS_MANAGED = 8,
        /// `c_int`: the device's ordinal.
        DEVICE_ORDINAL = 9,
        /// `c_int`: whether it can be shared by a legacy IPC handle.
        IS_LEGACY_CUDA_IPC_CAPABLE = 10,
        /// Start of the allocation, as the device sees it.
        RANGE_START_ADDR = 11,
        /// Its size.
        RANGE_SIZE = 12,
        /// `c_int`: whether it is mapped.
        MAPPED = 13,
        /// `CUmemoryPool` it came from, or null.
        MEMPOOL_HANDLE = 17,
    }
    /// A property of a pool.
    CUmemPool_attribute {
        /// `c_int`: whether a block may be reused on a stream that waits for its free.
        REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
        /// `c_int`: whether a block whose free is done may be reused anywhere.
        REUSE_ALLOW_OPPORTUNISTIC = 2,
        /// `c_int`: whether the driver may make a stream wait in order to reuse a block.
        REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
        /// `u64`: bytes that may stay reserved when a stream, event or context is waited for.
        RELEASE_THRESHOLD = 4,
        /// `u64`: bytes taken from the device now.
        RESERVED_MEM_CURRENT = 5,
        /// `u64`: their high-water mark.
        RESERVED_MEM_HIGH = 6,
        /// `u64`: bytes handed out now.
        USED_MEM_CURRENT = 7,
        /// `u64`: their high-water mark.
        USED_MEM_HIGH = 8,
    }
    /// Calls that a capture keeps threads from making.
    CUstreamCaptureMode {
        /// Calls that may disturb it, on every thread.
        GLOBAL = 0,
        /// Calls that may disturb it, on the thread that began it.
        THREAD_LOCAL = 1,
        /// Nothing.
        RELAXED = 2,
    }
    /// Recording state of a stream.
    CUstreamCaptureStatus {
        /// It runs its work.
        NONE = 0,
        /// It records.
        ACTIVE = 1,
        /// A capture that an error broke, and that was not ended yet.
        INVALIDATED = 2,
    }
    /// Kind of place of a [`CUmemLocation`].
    CUmemLocationType {
        /// None.
        INVALID = 0,
        /// A device by ordinal.
        DEVICE = 1,
        /// The host.
        HOST = 2,
        /// A NUMA node of the host.
        HOST_NUMA = 3,
        /// The NUMA node of the calling thread.
        HOST_NUMA_CURRENT = 4,
    }
    /// Where memory is, for copies and for pointers.
    CUmemorytype {
        /// The host.
        HOST = 1,
        /// A device.
        DEVICE = 2,
        /// A CUDA array.
        ARRAY = 3,
        /// Told from the address.
        UNIFIED = 4,
    }
}

/// The device that stands for the host in the first form of advice and prefetch.
pub const CU_DEVICE_CPU: CUdevice = -1;
/// The only kind of allocation that pools and physical memory have: pinned where it is.
pub const CU_MEM_ALLOCATION_TYPE_PINNED: c_int = 1;
/// No access.
pub const CU_MEM_ACCESS_FLAGS_PROT_NONE: c_int = 0;
/// Reads only.
pub const CU_MEM_ACCESS_FLAGS_PROT_READ: c_int = 1;
/// Reads and writes.
pub const CU_MEM_ACCESS_FLAGS_PROT_READWRITE: c_int = 3;
/// The least size that physical memory comes in multiples of.
pub const CU_MEM_ALLOC_GRANULARITY_MINIMUM: c_int = 0;
/// The size that the driver maps best.
pub const CU_MEM_ALLOC_GRANULARITY_RECOMMENDED: c_int = 1;
/// The stream does not wait for the legacy default stream, nor it for this one.
pub const CU_STREAM_NON_BLOCKING: c_uint = 1;
/// The event keeps no time, which makes it cheaper.
pub const CU_EVENT_DISABLE_TIMING: c_uint = 2;
/// Managed memory that any stream may use.
pub const CU_MEM_ATTACH_GLOBAL: c_uint = 1;
/// Managed memory that the host uses until a stream attaches it.
pub const CU_MEM_ATTACH_HOST: c_uint = 2;
/// Managed memory that only one stream uses.
pub const CU_MEM_ATTACH_SINGLE: c_uint = 4;
/// Pinned memory that counts as pinned in all contexts.
pub const CU_MEMHOSTALLOC_PORTABLE: c_uint = 1;
/// Pinned memory that the device sees.
pub const CU_MEMHOSTALLOC_DEVICEMAP: c_uint = 2;
/// Pinned memory that the host writes and does not read.
pub const CU_MEMHOSTALLOC_WRITECOMBINED: c_uint = 4;
/// `cuGetProcAddress`: the twins with a default stream for each thread.
pub const CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM: u64 = 2;

/// A device's identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CUuuid {
    /// Its bytes.
    pub bytes: [u8; 16],
}

/// A place that memory can be at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CUmemLocation {
    /// Kind of place.
    pub kind: CUmemLocationType,
    /// Which one: a device's ordinal or a NUMA node.
    pub id: c_int,
}

impl CUmemLocation {
    /// A device.
    pub fn device(ordinal: CUdevice) -> CUmemLocation {
        CUmemLocation { kind: CUmemLocationType::DEVICE, id: ordinal }
    }
}

/// Access of a location to a range or a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CUmemAccessDesc {
    /// Location that has the access.
    pub location: CUmemLocation,
    /// Access: `CU_MEM_ACCESS_FLAGS_PROT_*`.
    pub flags: c_int,
}

/// Properties that physical memory is asked for with.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUmemAllocationProp {
    /// [`CU_MEM_ALLOCATION_TYPE_PINNED`].
    pub kind: c_int,
    /// How it can be shared, as bits; 0 for not at all.
    pub requested_handle_types: c_int,
    /// Where.
    pub location: CUmemLocation,
    /// Windows only; null.
    pub win32_handle_metadata: *mut c_void,
    /// 1 for memory that compresses.
    pub compression_type: u8,
    /// 1 for memory that GPUDirect RDMA can reach.
    pub gpu_direct_rdma_capable: u8,
    /// 0.
    pub usage: u16,
    /// Zeros.
    pub reserved: [u8; 4],
}

impl CUmemAllocationProp {
    /// Plain memory of a device.
    pub fn device(ordinal: CUdevice) -> CUmemAllocationProp {
        CUmemAllocationProp {
            kind: CU_MEM_ALLOCATION_TYPE_PINNED,
            requested_handle_types: 0,
            location: CUmemLocation::device(ordinal),
            win32_handle_metadata: std::ptr::null_mut(),
            compression_type: 0,
            gpu_direct_rdma_capable: 0,
            usage: 0,
            reserved: [0; 4],
        }
    }
}

/// Properties that a pool is asked for with.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUmemPoolProps {
    /// [`CU_MEM_ALLOCATION_TYPE_PINNED`].
    pub kind: c_int,
    /// How it can be shared, as bits; 0 for not at all.
    pub handle_types: c_int,
    /// Where.
    pub location: CUmemLocation,
    /// Windows only; null.
    pub win32_security_attributes: *mut c_void,
    /// Bytes at most, 0 for the driver's choice; drivers before 12.2 ignore it.
    pub max_size: usize,
    /// 0.
    pub usage: u16,
    /// Zeros.
    pub reserved: [u8; 54],
}

impl CUmemPoolProps {
    /// A pool of a device's memory that is not shared and has no bound of its own.
    pub fn device(ordinal: CUdevice) -> CUmemPoolProps {
        CUmemPoolProps {
            kind: CU_MEM_ALLOCATION_TYPE_PINNED,
            handle_types: 0,
            location: CUmemLocation::device(ordinal),
            win32_security_attributes: std::ptr::null_mut(),
            max_size: 0,
            usage: 0,
            reserved: [0; 54],
        }
    }
}

/// A copy of a rectangle.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_MEMCPY2D {
    /// Where the source starts, bytes into its row.
    pub srcXInBytes: usize,
    /// And in which row.
    pub srcY: usize,
    /// Where the source is.
    pub srcMemoryType: CUmemorytype,
    /// The source if it is the host's.
    pub srcHost: *const c_void,
    /// The source if it is a device's or told from the address.
    pub srcDevice: CUdeviceptr,
    /// The source if it is an array.
    pub srcArray: *mut c_void,
    /// Bytes from row to row.
    pub srcPitch: usize,
    /// Where the target starts, bytes into its row.
    pub dstXInBytes: usize,
    /// And in which row.
    pub dstY: usize,
    /// Where the target is.
    pub dstMemoryType: CUmemorytype,
    /// The target if it is the host's.
    pub dstHost: *mut c_void,
    /// The target if it is a device's or told from the address.
    pub dstDevice: CUdeviceptr,
    /// The target if it is an array.
    pub dstArray: *mut c_void,
    /// Bytes from row to row.
    pub dstPitch: usize,
    /// Bytes of a row.
    pub WidthInBytes: usize,
    /// Rows.
    pub Height: usize,
}

// The sizes that cuda.h's structures have on 64-bit machines.
const _: () = {
    assert!(size_of::<CUmemLocation>() == 8);
    assert!(size_of::<CUmemAccessDesc>() == 12);
    assert!(size_of::<CUmemAllocationProp>() == 32);
    assert!(size_of::<CUmemPoolProps>() == 88);
    assert!(size_of::<CUDA_MEMCPY2D>() == 128);
};
