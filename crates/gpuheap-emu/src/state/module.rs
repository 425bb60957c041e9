//! Loaded modules and libraries, and their kernels.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::kernels::Kernel;
use crate::state::parameters::Parameters;

/// A module, or a library of kernels.
pub(crate) struct Module {
    /// Context of the module; `None` for a library, because libraries belong to no context.
    pub(crate) context: Option<u32>,
    pub(crate) code: Code,
    /// Parameters of the module's kernels; empty if the module's image does not state them.
    pub(crate) parameters: Parameters,
    /// Handles of the kernels that a caller looked up, keyed by name.
    pub(crate) functions: FxHashMap<String, usize>,
}

#[derive(Clone, Copy)]
pub(crate) enum Code {
    /// A kernel of gpuheap. The emulator runs it.
    Own(Kernel),
    /// Any other code, whose launches do nothing.
    Foreign,
}

/// A kernel of a loaded module.
pub(crate) struct Function {
    /// Context of the kernel's module; `None` for a kernel of a library.
    pub(crate) context: Option<u32>,
    /// Handle of the kernel's module or library.
    pub(crate) module: usize,
    pub(crate) code: Code,
    /// Sizes of the kernel's parameters in order, in bytes; empty if the image does not state them.
    pub(crate) parameters: Arc<[u32]>,
    /// Attributes that the program set, keyed by attribute number.
    pub(crate) set: FxHashMap<i32, i32>,
}
