//! Kinds of recorded memory.

/// Kind of recorded memory, by the function that allocated it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Plain device memory.
    #[default]
    Device,
    /// Device memory of rows with padding.
    Pitched,
    /// Managed memory. Its pages migrate between device and host.
    Managed,
    /// Stream-ordered memory of the device's current pool.
    StreamOrdered,
    /// Stream-ordered memory of a given pool.
    Pool,
    /// Physical memory of the virtual memory management. It is live until it is released and no
    /// address range maps it.
    Physical,
    /// Array for textures and surfaces.
    Array,
    /// Memory of a graph's node.
    Graph,
    /// Memory of another process, opened with a handle.
    Imported,
    /// Pinned host memory.
    Pinned,
    /// Host memory of the program that was pinned later.
    Registered,
    /// Block of PyTorch's pool.
    PyTorch,
    /// Block of CuPy's pool.
    CuPy,
    /// Block of a memory resource of RMM.
    Rmm,
}

impl MemoryKind {
    /// All kinds, in the order of their numbers in a capture.
    pub const ALL: [MemoryKind; 14] = [
        MemoryKind::Device,
        MemoryKind::Pitched,
        MemoryKind::Managed,
        MemoryKind::StreamOrdered,
        MemoryKind::Pool,
        MemoryKind::Physical,
        MemoryKind::Array,
        MemoryKind::Graph,
        MemoryKind::Imported,
        MemoryKind::Pinned,
        MemoryKind::Registered,
        MemoryKind::PyTorch,
        MemoryKind::CuPy,
        MemoryKind::Rmm,
    ];

    /// Returns the name: `device`, `stream-ordered`, and so on.
    pub fn as_str(self) -> &'static str {
        match self {
            MemoryKind::Device => "device",
            MemoryKind::Pitched => "pitched",
            MemoryKind::Managed => "managed",
            MemoryKind::StreamOrdered => "stream-ordered",
            MemoryKind::Pool => "from a pool",
            MemoryKind::Physical => "physical",
            MemoryKind::Array => "array",
            MemoryKind::Graph => "graph",
            MemoryKind::Imported => "imported",
            MemoryKind::Pinned => "pinned",
            MemoryKind::Registered => "registered",
            MemoryKind::PyTorch => "PyTorch",
            MemoryKind::CuPy => "CuPy",
            MemoryKind::Rmm => "RMM",
        }
    }

    /// Returns `true` if the memory is host memory.
    pub fn is_host(self) -> bool {
        matches!(self, MemoryKind::Pinned | MemoryKind::Registered)
    }

    /// Returns `true` if the memory is a block of a framework's pool.
    pub fn is_pooled(self) -> bool {
        matches!(self, MemoryKind::PyTorch | MemoryKind::CuPy | MemoryKind::Rmm)
    }

    /// Returns `true` if the process takes device memory for this kind. Imported memory counts for
    /// the process that exported it, and a block of a pool is a part of memory that counts.
    pub fn counts_on_device(self) -> bool {
        !self.is_host() && !self.is_pooled() && self != MemoryKind::Imported
    }

    /// Returns the space of the kind's addresses: 0 for pointers, 1 for handles of physical memory,
    /// 2 for handles of arrays, 3 for imported pointers, 4 to 6 for blocks of pools. Within a
    /// space, addresses of live memory differ.
    pub fn space(self) -> u32 {
        match self {
            MemoryKind::Physical => 1,
            MemoryKind::Array => 2,
            MemoryKind::Imported => 3,
            MemoryKind::PyTorch => 4,
            MemoryKind::CuPy => 5,
            MemoryKind::Rmm => 6,
            _ => 0,
        }
    }
}
