//! Loaded modules and their kernels.

use crate::kernels::Kernel;

/// A module with one kernel.
pub(crate) struct Module {
    pub(crate) context: u32,
    pub(crate) kernel: Kernel,
    /// Handle of its kernel, once a caller asked for it.
    pub(crate) function: Option<usize>,
}

/// A kernel of a loaded module.
#[derive(Clone, Copy)]
pub(crate) struct Function {
    pub(crate) context: u32,
    pub(crate) kernel: Kernel,
}
