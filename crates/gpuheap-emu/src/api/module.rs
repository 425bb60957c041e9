//! Modules. Those of gpuheap are known by their text; any other is refused.

use std::ffi::{c_char, c_int, c_uint, c_void};

use gpuheap_driver::*;

use crate::Outcome;
use crate::args::{In, Out};
use crate::emulator::Call;
use crate::finding::FindingKind;
use crate::kernels::Kernel;
use crate::state::module::{Function, Module};

impl Call<'_> {
    pub(crate) fn cuModuleLoadData(&mut self, module: Out<CUmodule>, image: In<c_void>) -> Outcome {
        let context = self.current()?;
        module.require()?;
        // A binary image ends at its first zero, and is not gpuheap's.
        let image = image.cast::<c_char>().text()?;
        let Some(kernel) = kernel_of(&image) else { return Err(self.refuse_kernels()) };
        let loaded = Module { context, kernel, function: None };
        module.write(CUmodule(self.state.modules.insert(loaded)))
    }

    pub(crate) fn cuModuleLoadDataEx(
        &mut self,
        module: Out<CUmodule>,
        image: In<c_void>,
        _count: c_uint,
        _options: Out<c_int>,
        _values: Out<*mut c_void>,
    ) -> Outcome {
        self.cuModuleLoadData(module, image)
    }

    pub(crate) fn cuModuleUnload(&mut self, module: CUmodule) -> Outcome {
        self.current()?;
        let gone = self.state.modules.remove(module.0).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        if let Some(function) = gone.function {
            self.state.functions.remove(function);
        }
        Ok(())
    }

    pub(crate) fn cuModuleGetFunction(
        &mut self,
        function: Out<CUfunction>,
        module: CUmodule,
        name: In<c_char>,
    ) -> Outcome {
        self.current()?;
        function.require()?;
        let name = name.text()?;
        let state = &mut *self.state;
        let found = state.modules.get_mut(module.0).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        if found.kernel.name() != name {
            return Err(CUresult::ERROR_NOT_FOUND);
        }
        let new = Function { context: found.context, kernel: found.kernel };
        let handle = *found.function.get_or_insert_with(|| state.functions.insert(new));
        function.write(CUfunction(handle))
    }

    pub(crate) fn cuModuleGetGlobal_v2(
        &mut self,
        pointer: Out<CUdeviceptr>,
        bytes: Out<usize>,
        module: CUmodule,
        name: In<c_char>,
    ) -> Outcome {
        self.current()?;
        // Either result may be null.
        if pointer.is_null() {
            bytes.require()?;
        }
        name.text()?;
        match self.state.modules.get(module.0) {
            // The kernels of gpuheap have no variables.
            Some(_) => Err(CUresult::ERROR_NOT_FOUND),
            None => Err(CUresult::ERROR_INVALID_HANDLE),
        }
    }

    /// Unloads the modules of a context that ends.
    pub(super) fn unload_all_of(&mut self, context: u32) {
        let of = |(index, owner): (u32, u32)| (owner == context).then_some(index);
        let modules = self.state.modules.iter().map(|(index, found)| (index, found.context));
        for index in modules.filter_map(of).collect::<Vec<_>>() {
            self.state.modules.remove_at(index);
        }
        let functions = self.state.functions.iter().map(|(index, found)| (index, found.context));
        for index in functions.filter_map(of).collect::<Vec<_>>() {
            self.state.functions.remove_at(index);
        }
    }

    fn refuse_kernels(&mut self) -> CUresult {
        let text = format!(
            "{}: the emulated device runs no kernels but gpuheap's own; use a real device, or keep kernels out of what is emulated",
            self.symbol
        );
        self.find(FindingKind::KernelRefused, text);
        CUresult::ERROR_NOT_SUPPORTED
    }
}

/// Returns the kernel whose text an image is. The whole text must match: no other text runs under a
/// kernel's name.
fn kernel_of(image: &str) -> Option<Kernel> {
    let (_, entry) = image.split_once(".visible .entry ")?;
    let (name, _) = entry.split_once('(')?;
    Kernel::parse(name).filter(|kernel| kernel.ptx() == image)
}
