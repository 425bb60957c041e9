//! Kinds of recorded memory and of copies.

/// Declares an enumeration that a capture stores as numbers, in the order of declaration.
macro_rules! numbered {
    ($($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $text:literal,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
            #[non_exhaustive]
            pub enum $name {
                $($(#[$value_doc])* $value,)*
            }

            impl $name {
                /// All values, in the order of their numbers.
                pub const ALL: &[$name] = &[$($name::$value),*];

                /// Returns the name in texts and JSON.
                pub fn as_str(self) -> &'static str {
                    match self {
                        $($name::$value => $text,)*
                    }
                }
            }
        )*
    };
}

numbered! {
    /// Kind of recorded memory, by the function that allocated it.
    #[derive(Default)]
    MemoryKind {
        /// Plain device memory.
        #[default]
        Device = "device",
        /// Device memory whose rows are padded.
        Pitched = "pitched",
        /// Managed memory. Its pages migrate between device and host.
        Managed = "managed",
        /// Stream-ordered memory of the device's current pool.
        StreamOrdered = "stream-ordered",
        /// Stream-ordered memory of a given pool.
        Pool = "from a pool",
        /// Physical memory of the driver's virtual memory management. It stays live until it is
        /// both released and unmapped.
        Physical = "physical",
        /// Array for textures and surfaces.
        Array = "array",
        /// Memory of a graph's node.
        Graph = "graph",
        /// Memory that another process allocated and exported as a handle.
        Imported = "imported",
        /// Pinned host memory.
        Pinned = "pinned",
        /// Host memory that the program allocated and pinned later.
        Registered = "registered",
        /// Block of PyTorch's pool.
        PyTorch = "PyTorch",
        /// Block of CuPy's pool.
        CuPy = "CuPy",
        /// Block of an RMM memory resource.
        Rmm = "RMM",
    }

    /// Direction of a copy.
    CopyDirection {
        /// Copy from the host to a device.
        ToDevice = "to device",
        /// Copy from a device to the host.
        ToHost = "to host",
        /// Copy within a device or between devices.
        InDevice = "in device",
    }

    /// Memory on the host's side of a copy.
    CopyMemory {
        /// No memory of the host.
        None = "none",
        /// Pageable memory. The driver copies it through pinned memory of the driver.
        Pageable = "pageable",
        /// Pinned memory that the driver allocated.
        Pinned = "pinned",
        /// Memory that the program registered.
        Registered = "registered",
        /// Managed memory.
        Managed = "managed",
    }
}

impl MemoryKind {
    /// Returns `true` if the memory is host memory.
    pub fn is_host(self) -> bool {
        matches!(self, MemoryKind::Pinned | MemoryKind::Registered)
    }

    /// Returns `true` if the memory is a block of a framework's pool.
    pub fn is_pooled(self) -> bool {
        matches!(self, MemoryKind::PyTorch | MemoryKind::CuPy | MemoryKind::Rmm)
    }

    /// Returns `true` if this kind counts as device memory of the process. Imported memory counts
    /// in the process that exported it. A block of a pool is part of memory that is already
    /// counted.
    pub fn counts_on_device(self) -> bool {
        !self.is_host() && !self.is_pooled() && self != MemoryKind::Imported
    }

    /// Returns the space (namespace) of the kind's addresses: 0 for pointers, 1 for handles of
    /// physical memory, 2 for handles of arrays, 3 for imported pointers, 4 to 6 for blocks of
    /// pools. Only within a space do two live allocations always have different addresses.
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
