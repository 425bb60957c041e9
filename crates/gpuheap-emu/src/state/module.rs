//! Loaded modules and libraries, and their kernels.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::kernels::Kernel;
use crate::state::parameters::Parameters;

/// A module, or a library of kernels.
pub(crate) struct Module {
    /// Context of a module; `None` for a library: it belongs to no context.
    pub(crate) context: Option<u32>,
    pub(crate) code: Code,
    /// Parameters of its kernels, as far as its image states them.
    pub(crate) parameters: Parameters,
    /// Handles of its kernels that a caller has, by name.
    pub(crate) functions: FxHashMap<String, usize>,
}

/// Code of a module or of a kernel.
#[derive(Clone, Copy)]
pub(crate) enum Code {
    /// A kernel of gpuheap. The emulator runs it.
    Own(Kernel),
    /// Any other code, whose launches do nothing.
    Foreign,
}

/// A kernel of a loaded module.
pub(crate) struct Function {
    /// Context of its module; `None` for a kernel of a library.
    pub(crate) context: Option<u32>,
    /// Handle of its module or library.
    pub(crate) module: usize,
    pub(crate) code: Code,
    /// Sizes of its parameters in order, bytes; empty if its image does not state them.
    pub(crate) parameters: Arc<[u32]>,
    /// Properties that the program set, by number.
    pub(crate) set: FxHashMap<i32, i32>,
}
