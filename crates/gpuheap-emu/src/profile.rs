//! Which device an emulated device pretends to be.

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Which device an emulated device pretends to be. The fields may be changed at will.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Answer of `cuDeviceGetName`, which always says that the device is emulated.
    pub name: String,
    /// Memory of the device as the driver reports it, bytes.
    pub memory_bytes: u64,
    /// Memory that a context takes, bytes.
    pub context_bytes: u64,
    /// Compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: i32,
    /// Clock of the multiprocessors, kHz.
    pub clock_khz: i32,
    /// Clock of the memory, kHz.
    pub memory_clock_khz: i32,
    /// Width of the memory bus, bits.
    pub memory_bus_bits: i32,
    /// L2 cache, bytes.
    pub l2_cache_bytes: i32,
    /// True if the device is one that Windows lends to Linux.
    pub wsl2: bool,
    /// True if there is virtual memory management.
    pub vmm: bool,
    /// True if there are stream-ordered pools.
    pub pools: bool,
    /// True if host and device may touch managed memory at the same time; without it managed memory
    /// can be neither prefetched nor advised.
    pub concurrent_managed_access: bool,
    /// Pinned host memory at most, bytes.
    pub pinned_limit: Option<u64>,
    /// By how much `cuMemGetInfo` promises more free bytes than can be had.
    pub free_overstated_bytes: u64,
    /// Freed device memory can be had again only this many driver calls later.
    pub late_release_calls: u64,
}

impl Profile {
    /// The names that [`named`](Profile::named) knows.
    pub const NAMES: &[&str] = &["h200", "rtx4090", "t4", "wsl2-rtx4060"];

    /// The profile of a name of [`NAMES`](Profile::NAMES).
    pub fn named(name: &str) -> Option<Profile> {
        match name {
            "h200" => Some(Profile::h200()),
            "rtx4090" => Some(Profile::rtx4090()),
            "t4" => Some(Profile::t4()),
            "wsl2-rtx4060" => Some(Profile::wsl2_rtx4060()),
            _ => None,
        }
    }

    /// A device of which exactly this many bytes can be allocated: its contexts take nothing.
    /// Otherwise as [`h200`](Profile::h200).
    pub fn with_memory(bytes: u64) -> Profile {
        Profile {
            name: "emulated device".to_owned(),
            memory_bytes: bytes,
            context_bytes: 0,
            ..Profile::h200()
        }
    }

    /// NVIDIA H200 SXM. Memory and context as measured with driver 580.
    pub fn h200() -> Profile {
        Profile {
            name: "emulated NVIDIA H200".to_owned(),
            memory_bytes: 150_109_880_320,
            context_bytes: 552_402_944,
            compute_capability: (9, 0),
            multiprocessors: 132,
            clock_khz: 1_980_000,
            memory_clock_khz: 3_201_000,
            memory_bus_bits: 6016,
            l2_cache_bytes: 60 << 20,
            wsl2: false,
            vmm: true,
            pools: true,
            concurrent_managed_access: true,
            pinned_limit: None,
            free_overstated_bytes: 0,
            late_release_calls: 0,
        }
    }

    /// NVIDIA GeForce RTX 4090. Memory from its data sheet less what drivers keep; the context is an
    /// estimate.
    pub fn rtx4090() -> Profile {
        Profile {
            name: "emulated NVIDIA GeForce RTX 4090".to_owned(),
            memory_bytes: 24 * GIB - 500 * MIB,
            context_bytes: 380 * MIB,
            compute_capability: (8, 9),
            multiprocessors: 128,
            clock_khz: 2_520_000,
            memory_clock_khz: 10_501_000,
            memory_bus_bits: 384,
            l2_cache_bytes: 72 << 20,
            ..Profile::h200()
        }
    }

    /// NVIDIA T4. Memory from its data sheet less what drivers keep; the context is an estimate.
    pub fn t4() -> Profile {
        Profile {
            name: "emulated Tesla T4".to_owned(),
            memory_bytes: 15 * GIB - 260 * MIB,
            context_bytes: 104 * MIB,
            compute_capability: (7, 5),
            multiprocessors: 40,
            clock_khz: 1_590_000,
            memory_clock_khz: 5_001_000,
            memory_bus_bits: 256,
            l2_cache_bytes: 4 << 20,
            ..Profile::h200()
        }
    }

    /// NVIDIA GeForce RTX 4060 under WSL2: no virtual memory management, no concurrent managed
    /// access, pinned memory scarce, free figures that promise too much, memory that comes back
    /// late. The figures are chosen to provoke, not measured.
    pub fn wsl2_rtx4060() -> Profile {
        Profile {
            name: "emulated NVIDIA GeForce RTX 4060 (WSL2)".to_owned(),
            memory_bytes: 8 * GIB - 188 * MIB,
            context_bytes: 230 * MIB,
            compute_capability: (8, 9),
            multiprocessors: 24,
            clock_khz: 2_460_000,
            memory_clock_khz: 8_501_000,
            memory_bus_bits: 128,
            l2_cache_bytes: 24 << 20,
            wsl2: true,
            vmm: false,
            concurrent_managed_access: false,
            pinned_limit: Some(512 * MIB),
            free_overstated_bytes: 256 * MIB,
            late_release_calls: 3,
            ..Profile::h200()
        }
    }

    /// Makes contexts take no memory.
    pub fn without_context(self) -> Profile {
        self.context_bytes(0)
    }

    /// Makes each context take this much memory.
    pub fn context_bytes(mut self, bytes: u64) -> Profile {
        self.context_bytes = bytes;
        self
    }

    /// Sets the device's memory.
    pub fn memory_bytes(mut self, bytes: u64) -> Profile {
        self.memory_bytes = bytes;
        self
    }
}
