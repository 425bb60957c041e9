//! Frameworks whose settings are searched.

/// Framework whose settings are searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// PyTorch's allocator under `PYTORCH_CUDA_ALLOC_CONF`.
    Torch,
    /// RMM's memory resources, through their Python interface.
    Rmm,
    /// CuPy's pools.
    CuPy,
}

impl Family {
    /// Returns the name in the command's arguments.
    pub fn name(self) -> &'static str {
        match self {
            Self::Torch => "torch",
            Self::Rmm => "rmm",
            Self::CuPy => "cupy",
        }
    }

    /// Returns the name for people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Torch => "PyTorch",
            Self::Rmm => "RMM",
            Self::CuPy => "CuPy",
        }
    }
}
