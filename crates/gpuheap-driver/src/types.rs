//! Types of the driver API, with the layout and names of `cuda.h`.
//!
//! Handles are integers of a pointer's size. They are opaque: code compares them and passes them
//! on, and never dereferences them. Enumerations are integer newtypes, so that a value from a newer
//! driver is a number and not undefined behaviour.
#![allow(non_camel_case_types, non_snake_case)]

use std::ffi::{c_int, c_uint, c_void};
use std::fmt;

/// Ordinal of a device, in the driver's order.
pub type CUdevice = c_int;
/// An address in the device's address space.
pub type CUdeviceptr = u64;
/// Physical memory of the virtual memory management.
pub type CUmemGenericAllocationHandle = u64;
/// A host function that the driver calls when a stream reaches it.
pub type CUhostFn = Option<unsafe extern "C" fn(data: *mut c_void)>;
/// A host function that the driver calls in stream order, with the stream and the stream's status.
pub type CUstreamCallback =
    Option<unsafe extern "C" fn(stream: CUstream, status: crate::CUresult, data: *mut c_void)>;

/// A function that returns the bytes of shared memory that a block of `block_threads` threads
/// needs.
pub type CUoccupancyB2DSize = Option<unsafe extern "C" fn(block_threads: c_int) -> usize>;

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
    /// A green context: a context for a part of a device.
    CUgreenCtx;
    /// A stream. The null handle is the default stream.
    CUstream;
    /// An event.
    CUevent;
    /// A stream-ordered memory pool.
    CUmemoryPool;
    /// A loaded module.
    CUmodule;
    /// A kernel.
    CUfunction;
    /// A library of kernels. It belongs to no context.
    CUlibrary;
    /// A kernel of a library. A launch takes it as a [`CUfunction`].
    CUkernel;
    /// A graph of work.
    CUgraph;
    /// A graph that can be launched.
    CUgraphExec;
    /// A node of a graph.
    CUgraphNode;
    /// An object that graphs keep alive. The driver calls a function that destroys the object.
    CUuserObject;
}

impl CUstream {
    /// Explicit handle of the legacy default stream. That stream waits for all blocking streams.
    pub const LEGACY: CUstream = CUstream(1);
    /// Explicit handle of the calling thread's own default stream.
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
    /// Checkpoint state of a process.
    CUprocessState {
        /// The process runs.
        RUNNING = 0,
        /// The process's calls to the driver wait.
        LOCKED = 1,
        /// The memory of the process is on the host.
        CHECKPOINTED = 2,
        /// A checkpoint or a restore failed, and the process cannot go on.
        FAILED = 3,
    }

    /// A property of a device.
    CUdevice_attribute {
        /// Maximum number of threads in a block.
        MAX_THREADS_PER_BLOCK = 1,
        /// Maximum number of threads in a block's first dimension.
        MAX_BLOCK_DIM_X = 2,
        /// Maximum number of threads in a block's second dimension.
        MAX_BLOCK_DIM_Y = 3,
        /// Maximum number of threads in a block's third dimension.
        MAX_BLOCK_DIM_Z = 4,
        /// Maximum number of blocks in a grid's first dimension.
        MAX_GRID_DIM_X = 5,
        /// Maximum number of blocks in a grid's second dimension.
        MAX_GRID_DIM_Y = 6,
        /// Maximum number of blocks in a grid's third dimension.
        MAX_GRID_DIM_Z = 7,
        /// Shared memory of a block, in bytes.
        MAX_SHARED_MEMORY_PER_BLOCK = 8,
        /// Number of threads in a warp.
        WARP_SIZE = 10,
        /// Largest pitch of a copy, in bytes.
        MAX_PITCH = 11,
        /// Clock of the multiprocessors, kHz.
        CLOCK_RATE = 13,
        /// Number of multiprocessors.
        MULTIPROCESSOR_COUNT = 16,
        /// 1 if the device is integrated: it uses the host's memory as device memory.
        INTEGRATED = 18,
        /// 1 if host memory can be mapped into the device's address space.
        CAN_MAP_HOST_MEMORY = 19,
        /// Compute mode; 0 allows any number of contexts.
        COMPUTE_MODE = 20,
        /// 1 if kernels can run at the same time.
        CONCURRENT_KERNELS = 31,
        /// PCI bus number.
        PCI_BUS_ID = 33,
        /// PCI device number.
        PCI_DEVICE_ID = 34,
        /// Clock of the memory, kHz.
        MEMORY_CLOCK_RATE = 36,
        /// Width of the memory bus, bits.
        GLOBAL_MEMORY_BUS_WIDTH = 37,
        /// Size of the L2 cache, in bytes.
        L2_CACHE_SIZE = 38,
        /// Maximum number of threads on a multiprocessor.
        MAX_THREADS_PER_MULTIPROCESSOR = 39,
        /// Number of copy engines.
        ASYNC_ENGINE_COUNT = 40,
        /// 1 if host and device share one address space.
        UNIFIED_ADDRESSING = 41,
        /// PCI domain number.
        PCI_DOMAIN_ID = 50,
        /// Major number of the compute capability.
        COMPUTE_CAPABILITY_MAJOR = 75,
        /// Minor number of the compute capability.
        COMPUTE_CAPABILITY_MINOR = 76,
        /// 1 if streams have priorities.
        STREAM_PRIORITIES_SUPPORTED = 78,
        /// 1 if managed memory can be allocated.
        MANAGED_MEMORY = 83,
        /// 1 if the device is one of several devices on one board.
        MULTI_GPU_BOARD = 84,
        /// Identifier of the board that the device is on.
        MULTI_GPU_BOARD_GROUP_ID = 85,
        /// 1 if the device can access pageable host memory.
        PAGEABLE_MEMORY_ACCESS = 88,
        /// 1 if host and device may use managed memory at the same time.
        CONCURRENT_MANAGED_ACCESS = 89,
        /// 1 if registered host memory has the same address on the device as on the host.
        CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
        /// 1 if host memory can be registered.
        HOST_REGISTER_SUPPORTED = 99,
        /// 1 if the device accesses pageable memory through the host's page tables.
        PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES = 100,
        /// 1 if the host accesses managed memory on the device without migrating it.
        DIRECT_MANAGED_MEM_ACCESS_FROM_HOST = 101,
        /// 1 if the device supports virtual memory management.
        VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
        /// 1 if physical memory can be shared by file descriptor.
        HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
        /// 1 if the device supports compressible memory.
        GENERIC_COMPRESSION_SUPPORTED = 107,
        /// 1 if the device can create physical memory for GPUDirect RDMA.
        GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
        /// 1 if the device supports stream-ordered pools.
        MEMORY_POOLS_SUPPORTED = 115,
        /// 1 if the device supports GPUDirect RDMA.
        GPU_DIRECT_RDMA_SUPPORTED = 116,
        /// Ways in which pools can be shared, as bits.
        MEMPOOL_SUPPORTED_HANDLE_TYPES = 119,
        /// 1 if physical memory can be created on NUMA nodes of the host.
        HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 141,
        /// 1 if pools can be created on NUMA nodes of the host.
        HOST_NUMA_MEMORY_POOLS_SUPPORTED = 142,
        /// 1 if pools can be created on the host.
        HOST_MEMORY_POOLS_SUPPORTED = 144,
        /// 1 if physical memory can be created on the host.
        HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 145,
    }
    /// A property of the memory that a pointer points to.
    CUpointer_attribute {
        /// `CUcontext` of the allocation.
        CONTEXT = 1,
        /// `c_uint`: a [`CUmemorytype`].
        MEMORY_TYPE = 2,
        /// Address of the memory on the device.
        DEVICE_POINTER = 3,
        /// Address of the memory on the host.
        HOST_POINTER = 4,
        /// `c_uint`: 1 if synchronous copies of this memory always block the host.
        SYNC_MEMOPS = 6,
        /// `u64`: id of the allocation, never reused.
        BUFFER_ID = 7,
        /// `c_uint`: 1 for managed memory.
        IS_MANAGED = 8,
        /// `c_int`: ordinal of the device.
        DEVICE_ORDINAL = 9,
        /// `c_int`: 1 if a legacy IPC handle can share the memory.
        IS_LEGACY_CUDA_IPC_CAPABLE = 10,
        /// Start address of the allocation on the device.
        RANGE_START_ADDR = 11,
        /// Size of the allocation, in bytes.
        RANGE_SIZE = 12,
        /// `c_int`: 1 if the memory is mapped.
        MAPPED = 13,
        /// `c_int`: ways in which the memory can be shared, as bits.
        ALLOWED_HANDLE_TYPES = 14,
        /// `c_int`: 1 if GPUDirect RDMA can use the memory.
        IS_GPU_DIRECT_RDMA_CAPABLE = 15,
        /// `c_int`: access that the device has, `CU_MEM_ACCESS_FLAGS_PROT_*`.
        ACCESS_FLAGS = 16,
        /// `CUmemoryPool` that the memory was allocated from, or null.
        MEMPOOL_HANDLE = 17,
    }
    /// A property of a kernel.
    CUfunction_attribute {
        /// Maximum number of threads in a block.
        MAX_THREADS_PER_BLOCK = 0,
        /// Shared memory that the kernel declares, in bytes.
        SHARED_SIZE_BYTES = 1,
        /// Constant memory that the kernel declares, in bytes.
        CONST_SIZE_BYTES = 2,
        /// Local memory of a thread, in bytes.
        LOCAL_SIZE_BYTES = 3,
        /// Number of registers of a thread.
        NUM_REGS = 4,
        /// Version of the PTX, 10 × major + minor.
        PTX_VERSION = 5,
        /// Version of the binary, 10 × major + minor.
        BINARY_VERSION = 6,
        /// 1 if global loads are cached.
        CACHE_MODE_CA = 7,
        /// Largest dynamic shared memory of a block, in bytes.
        MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
        /// Preferred percentage of the cache to use as shared memory; -1 for the driver's choice.
        PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
        /// 1 if a launch must specify the size of a cluster.
        CLUSTER_SIZE_MUST_BE_SET = 10,
    }
    /// A property of a pool.
    CUmemPool_attribute {
        /// `c_int`: 1 if a stream may reuse a block once the stream depends on the block's free.
        REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
        /// `c_int`: 1 if any stream may reuse a block once the block's free has completed.
        REUSE_ALLOW_OPPORTUNISTIC = 2,
        /// `c_int`: 1 if the driver may make a stream wait so that the stream can reuse a block.
        REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
        /// `u64`: bytes that stay reserved. When the host waits for a stream, event or context, the
        /// driver releases free memory above this threshold.
        RELEASE_THRESHOLD = 4,
        /// `u64`: bytes reserved from the device.
        RESERVED_MEM_CURRENT = 5,
        /// `u64`: high-water mark of the bytes reserved.
        RESERVED_MEM_HIGH = 6,
        /// `u64`: bytes handed out.
        USED_MEM_CURRENT = 7,
        /// `u64`: high-water mark of the bytes handed out.
        USED_MEM_HIGH = 8,
    }
    /// An attribute of the memory that graphs allocate on a device. The value is a `u64`, in bytes.
    CUgraphMem_attribute {
        /// Bytes in use by graphs.
        USED_MEM_CURRENT = 0,
        /// High-water mark of the bytes in use.
        USED_MEM_HIGH = 1,
        /// Bytes reserved from the device.
        RESERVED_MEM_CURRENT = 2,
        /// High-water mark of the bytes reserved.
        RESERVED_MEM_HIGH = 3,
    }
    /// Calls that are forbidden during a capture, and the threads on which they are forbidden.
    CUstreamCaptureMode {
        /// On every thread, forbids calls that may disturb the capture.
        GLOBAL = 0,
        /// Forbids calls that may disturb the capture, on the thread that began the capture.
        THREAD_LOCAL = 1,
        /// Forbids no calls.
        RELAXED = 2,
    }
    /// Capture state of a stream.
    CUstreamCaptureStatus {
        /// The stream runs its work.
        NONE = 0,
        /// The stream records a graph.
        ACTIVE = 1,
        /// An error invalidated the stream's capture, and the program has not ended the capture.
        INVALIDATED = 2,
    }
    /// Kind of location of a [`CUmemLocation`].
    CUmemLocationType {
        /// No location.
        INVALID = 0,
        /// A device. The location's id is the device's ordinal.
        DEVICE = 1,
        /// The host.
        HOST = 2,
        /// A NUMA node of the host.
        HOST_NUMA = 3,
        /// The NUMA node of the calling thread.
        HOST_NUMA_CURRENT = 4,
    }
    /// Kind of memory that a copy accesses or a pointer points to.
    CUmemorytype {
        /// The host.
        HOST = 1,
        /// A device.
        DEVICE = 2,
        /// A CUDA array.
        ARRAY = 3,
        /// Host or device memory. The driver determines the kind from the address.
        UNIFIED = 4,
    }
}

/// Ordinal that stands for the host in `cuMemAdvise` and `cuMemPrefetchAsync`.
pub const CU_DEVICE_CPU: CUdevice = -1;
/// Kind of allocation whose memory does not migrate. Physical memory is always of this kind.
pub const CU_MEM_ALLOCATION_TYPE_PINNED: c_int = 1;
/// Kind of allocation in pools of managed memory.
pub const CU_MEM_ALLOCATION_TYPE_MANAGED: c_int = 2;
/// Type of a handle that shares physical memory as a file descriptor.
pub const CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: c_int = 1;
/// No access.
pub const CU_MEM_ACCESS_FLAGS_PROT_NONE: c_int = 0;
/// Reads only.
pub const CU_MEM_ACCESS_FLAGS_PROT_READ: c_int = 1;
/// Reads and writes.
pub const CU_MEM_ACCESS_FLAGS_PROT_READWRITE: c_int = 3;
/// Smallest granularity of physical memory.
pub const CU_MEM_ALLOC_GRANULARITY_MINIMUM: c_int = 0;
/// Granularity of physical memory with which the device is fastest.
pub const CU_MEM_ALLOC_GRANULARITY_RECOMMENDED: c_int = 1;
/// Flag of a non-blocking stream: this stream and the legacy default stream do not wait for each
/// other.
pub const CU_STREAM_NON_BLOCKING: c_uint = 1;
/// Flag of an event that records no time. Such an event costs less.
pub const CU_EVENT_DISABLE_TIMING: c_uint = 2;
/// Flag of a user object: no call waits for the object's destruction. CUDA requires this flag.
pub const CU_USER_OBJECT_NO_DESTRUCTOR_SYNC: c_uint = 1;
/// Flag of `cuGraphRetainUserObject`: the program's references to the user object move to the
/// graph.
pub const CU_GRAPH_USER_OBJECT_MOVE: c_uint = 1;
/// Flag of managed memory that any stream may use.
pub const CU_MEM_ATTACH_GLOBAL: c_uint = 1;
/// Flag of managed memory that only the host uses until the memory is attached to a stream.
pub const CU_MEM_ATTACH_HOST: c_uint = 2;
/// Flag of managed memory that only one stream uses.
pub const CU_MEM_ATTACH_SINGLE: c_uint = 4;
/// Flag of pinned memory that counts as pinned in all contexts.
pub const CU_MEMHOSTALLOC_PORTABLE: c_uint = 1;
/// Flag of pinned memory that is mapped into the device's address space.
pub const CU_MEMHOSTALLOC_DEVICEMAP: c_uint = 2;
/// Flag of pinned memory that the host only writes: it is mapped as write-combined.
pub const CU_MEMHOSTALLOC_WRITECOMBINED: c_uint = 4;
/// Flag with which `cuGetProcAddress` finds the twin that uses a default stream for each thread.
pub const CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM: u64 = 2;

/// Arguments of `cuCheckpointProcessLock`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CUcheckpointLockArgs {
    /// Limit of the wait, ms; 0 for no limit.
    pub timeoutMs: c_uint,
    /// Must be 0.
    pub reserved0: c_uint,
    /// Must be zeros.
    pub reserved1: [u64; 7],
}

/// UUID of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CUuuid {
    /// Bytes of the UUID.
    pub bytes: [u8; 16],
}

/// NVML's format: `GPU-67707568-6561-702d-656d-750000000000`.
impl fmt::Display for CUuuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (index, byte) in self.bytes.iter().enumerate() {
            let dash = if [0, 4, 6, 8, 10].contains(&index) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// A location of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CUmemLocation {
    /// Kind of location.
    pub kind: CUmemLocationType,
    /// Identifier of the location: the ordinal of a device, or of a NUMA node.
    pub id: c_int,
}

impl CUmemLocation {
    /// Returns the location of a device.
    pub fn device(ordinal: CUdevice) -> CUmemLocation {
        CUmemLocation { kind: CUmemLocationType::DEVICE, id: ordinal }
    }
}

/// Access that a location has to a range or a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CUmemAccessDesc {
    /// Location that has the access.
    pub location: CUmemLocation,
    /// Access: `CU_MEM_ACCESS_FLAGS_PROT_*`.
    pub flags: c_int,
}

/// Properties of physical memory to create.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUmemAllocationProp {
    /// [`CU_MEM_ALLOCATION_TYPE_PINNED`].
    pub kind: c_int,
    /// Bits for the ways in which the memory can be shared; 0 for none.
    pub requested_handle_types: c_int,
    /// Location of the memory.
    pub location: CUmemLocation,
    /// Null, except on Windows.
    pub win32_handle_metadata: *mut c_void,
    /// 1 for compressible memory.
    pub compression_type: u8,
    /// 1 for memory that GPUDirect RDMA can use.
    pub gpu_direct_rdma_capable: u8,
    /// Must be 0.
    pub usage: u16,
    /// Must be zeros.
    pub reserved: [u8; 4],
}

impl CUmemAllocationProp {
    /// Returns properties for device memory that is neither shared nor compressible.
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

/// Properties of a pool to create.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUmemPoolProps {
    /// [`CU_MEM_ALLOCATION_TYPE_PINNED`].
    pub kind: c_int,
    /// Bits for the ways in which the pool can be shared; 0 for none.
    pub handle_types: c_int,
    /// Location of the pool's memory.
    pub location: CUmemLocation,
    /// Null, except on Windows.
    pub win32_security_attributes: *mut c_void,
    /// Largest size of the pool, in bytes; 0 for the driver's choice. Drivers before 12.2 ignore
    /// this field.
    pub max_size: usize,
    /// Must be 0.
    pub usage: u16,
    /// Must be zeros.
    pub reserved: [u8; 54],
}

impl CUmemPoolProps {
    /// Returns properties for a pool of device memory. The pool is not shared and has no limit.
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

/// Parameters for the creation of an executable graph, and the outcome of that creation.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_GRAPH_INSTANTIATE_PARAMS {
    /// Flags, as bits. 1 frees the graph's memory before a relaunch, 2 uploads the graph, 4 lets a
    /// device launch the graph, and 8 uses the nodes' priorities.
    pub flags: u64,
    /// Stream on which the graph is uploaded.
    pub hUploadStream: CUstream,
    /// Node that failed, or null.
    pub hErrNode_out: CUgraphNode,
    /// Outcome. 0 is success; 1 is a failure that the returned error explains.
    pub result_out: c_int,
}

/// A launch of a kernel.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUlaunchConfig {
    /// Number of blocks in the grid's first dimension.
    pub gridDimX: c_uint,
    /// Number of blocks in the grid's second dimension.
    pub gridDimY: c_uint,
    /// Number of blocks in the grid's third dimension.
    pub gridDimZ: c_uint,
    /// Number of threads in a block's first dimension.
    pub blockDimX: c_uint,
    /// Number of threads in a block's second dimension.
    pub blockDimY: c_uint,
    /// Number of threads in a block's third dimension.
    pub blockDimZ: c_uint,
    /// Dynamic shared memory of a block, in bytes.
    pub sharedMemBytes: c_uint,
    /// Stream of the launch.
    pub hStream: CUstream,
    /// Attributes of the launch, such as the size of its clusters.
    pub attrs: *mut c_void,
    /// Number of attributes.
    pub numAttrs: c_uint,
}

/// A copy of a rectangle.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_MEMCPY2D {
    /// Offset of the source rectangle from the start of the row, in bytes.
    pub srcXInBytes: usize,
    /// Index of the row in which the source rectangle starts.
    pub srcY: usize,
    /// Kind of memory that contains the source.
    pub srcMemoryType: CUmemorytype,
    /// Address of the source, if it is host memory.
    pub srcHost: *const c_void,
    /// Address of the source, if its kind is device or unified memory.
    pub srcDevice: CUdeviceptr,
    /// Handle of the source, if it is a CUDA array.
    pub srcArray: *mut c_void,
    /// Bytes from the start of one source row to the start of the next row.
    pub srcPitch: usize,
    /// Offset of the target rectangle from the start of the row, in bytes.
    pub dstXInBytes: usize,
    /// Index of the row in which the target rectangle starts.
    pub dstY: usize,
    /// Kind of memory that contains the target.
    pub dstMemoryType: CUmemorytype,
    /// Address of the target, if it is host memory.
    pub dstHost: *mut c_void,
    /// Address of the target, if its kind is device or unified memory.
    pub dstDevice: CUdeviceptr,
    /// Handle of the target, if it is a CUDA array.
    pub dstArray: *mut c_void,
    /// Bytes from the start of one target row to the start of the next row.
    pub dstPitch: usize,
    /// Bytes to copy from each row.
    pub WidthInBytes: usize,
    /// Number of rows to copy.
    pub Height: usize,
}

// Checks the structures' sizes against `cuda.h` on 64-bit machines.
const _: () = {
    assert!(size_of::<CUcheckpointLockArgs>() == 64);
    assert!(size_of::<CUmemLocation>() == 8);
    assert!(size_of::<CUmemAccessDesc>() == 12);
    assert!(size_of::<CUmemAllocationProp>() == 32);
    assert!(size_of::<CUmemPoolProps>() == 88);
    assert!(size_of::<CUDA_MEMCPY2D>() == 128);
    assert!(size_of::<CUlaunchConfig>() == 56);
    assert!(size_of::<CUDA_GRAPH_INSTANTIATE_PARAMS>() == 32);
};
