//! Loaded modules and their kernels.

use crate::kernels::Kernel;

/// A module with one kernel.
pub(crate) struct Module {
    pub(crate) context: u32,
    pub(crate) kernel: Kernel,
    /// The handle of its kernel, since somebody asked for it.
    pub(crate) function: Option<usize>,
}

/// A kernel of a module that is loaded.
#[derive(Clone, Copy)]
pub(crate) struct Function {
    pub(crate) context: u32,
    pub(crate) kernel: Kernel,
}
