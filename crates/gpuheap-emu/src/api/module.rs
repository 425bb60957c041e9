//! Modules and libraries of kernels. gpuheap's own modules are recognised by their text. Any other
//! module is refused, or its launches do nothing.

use super::prelude::*;
use rustc_hash::FxHashMap;

use crate::finding::FindingKind;
use crate::kernels::Kernel;
use crate::options::Kernels;
use crate::state::module::{Code, Function, Module};
use crate::state::parameters::{Image, Parameters};

/// Value that `cuModuleGetLoadingMode` writes for a driver that loads kernels at their first use.
const LAZY: c_int = 2;

impl Call<'_> {
    pub(crate) fn cuModuleLoadData(&mut self, (module, image): args::cuModuleLoadData) -> Outcome {
        let context = self.current()?;
        module.require()?;
        let handle = self.load(Some(context), &Image::at(image)?)?;
        module.write(CUmodule(handle))
    }

    pub(crate) fn cuModuleLoadDataEx(
        &mut self,
        (module, image, ..): args::cuModuleLoadDataEx,
    ) -> Outcome {
        self.cuModuleLoadData((module, image))
    }

    pub(crate) fn cuModuleLoad(&mut self, (module, file): args::cuModuleLoad) -> Outcome {
        let context = self.current()?;
        module.require()?;
        let handle = self.load(Some(context), &Image::from_file(file)?)?;
        module.write(CUmodule(handle))
    }

    pub(crate) fn cuModuleUnload(&mut self, module: CUmodule) -> Outcome {
        self.current()?;
        self.unload(module.0)
    }

    pub(crate) fn cuModuleGetFunction(
        &mut self,
        (function, module, name): args::cuModuleGetFunction,
    ) -> Outcome {
        self.current()?;
        function.require()?;
        let handle = self.find_function(module.0, name)?;
        function.write(CUfunction(handle))
    }

    pub(crate) fn cuModuleGetGlobal_v2(
        &mut self,
        (pointer, bytes, module, name): args::cuModuleGetGlobal_v2,
    ) -> Outcome {
        self.current()?;
        self.refuse_global(pointer, bytes, module.0, name)
    }

    pub(crate) fn cuModuleGetLoadingMode(&mut self, mode: Out<c_int>) -> Outcome {
        self.initialised()?;
        mode.write(LAZY)
    }

    pub(crate) fn cuLibraryLoadData(
        &mut self,
        (library, image, ..): args::cuLibraryLoadData,
    ) -> Outcome {
        self.initialised()?;
        library.require()?;
        let handle = self.load(None, &Image::at(image)?)?;
        library.write(CUlibrary(handle))
    }

    pub(crate) fn cuLibraryLoadFromFile(
        &mut self,
        (library, file, ..): args::cuLibraryLoadFromFile,
    ) -> Outcome {
        self.initialised()?;
        library.require()?;
        let handle = self.load(None, &Image::from_file(file)?)?;
        library.write(CUlibrary(handle))
    }

    pub(crate) fn cuLibraryUnload(&mut self, library: CUlibrary) -> Outcome {
        self.initialised()?;
        self.unload(library.0)
    }

    pub(crate) fn cuLibraryGetKernel(
        &mut self,
        (kernel, library, name): args::cuLibraryGetKernel,
    ) -> Outcome {
        self.initialised()?;
        kernel.require()?;
        let handle = self.find_function(library.0, name)?;
        kernel.write(CUkernel(handle))
    }

    /// Writes the library's own handle as the module. A library needs no module for each context,
    /// because its kernels exist in every context.
    pub(crate) fn cuLibraryGetModule(
        &mut self,
        (module, library): args::cuLibraryGetModule,
    ) -> Outcome {
        self.current()?;
        self.state.modules.get(library.0).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        module.write(CUmodule(library.0))
    }

    pub(crate) fn cuLibraryGetGlobal(
        &mut self,
        (pointer, bytes, library, name): args::cuLibraryGetGlobal,
    ) -> Outcome {
        self.current()?;
        self.refuse_global(pointer, bytes, library.0, name)
    }

    pub(crate) fn cuKernelGetFunction(
        &mut self,
        (function, kernel): args::cuKernelGetFunction,
    ) -> Outcome {
        self.current()?;
        self.state.functions.get(kernel.0).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        function.write(CUfunction(kernel.0))
    }

    pub(crate) fn cuFuncGetModule(&mut self, (module, function): args::cuFuncGetModule) -> Outcome {
        let found = self.state.functions.get(function.0).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        module.write(CUmodule(found.module))
    }

    /// Fails unless the emulator accepts all kernels and runs none of them. Queries about a kernel
    /// call this, because the figures that they return are invented.
    pub(crate) fn kernels_are_no_ops(&self) -> Outcome {
        fail_if(self.state.options.kernels == Kernels::Own, CUresult::ERROR_NOT_SUPPORTED)
    }

    /// Loads the code of an image, and the parameters of the image's kernels. Returns the handle of
    /// the module or library.
    fn load(&mut self, context: Option<u32>, image: &Image) -> Outcome<usize> {
        let own = match image {
            Image::Ptx(text) => parse_own_kernel(text),
            Image::Elf(_) | Image::Unknown => None,
        };
        let (code, parameters) = match (own, self.state.options.kernels) {
            (Some(kernel), _) => (Code::Own(kernel), Parameters::default()),
            (None, Kernels::NoOp) => (Code::Foreign, image.parameters()),
            (None, Kernels::Own) => return Err(self.refuse_kernels()),
        };
        let loaded = Module { context, code, parameters, functions: FxHashMap::default() };
        Ok(self.state.modules.insert(loaded))
    }

    /// Removes a module or library, and its kernels.
    fn unload(&mut self, handle: usize) -> Outcome {
        let gone = self.state.modules.remove(handle).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        for function in gone.functions.into_values() {
            self.state.functions.remove(function);
        }
        Ok(())
    }

    /// Returns the handle of the kernel `name` of a module or library.
    fn find_function(&mut self, module: usize, name: In<c_char>) -> Outcome<usize> {
        let name = name.text()?;
        let state = &mut *self.state;
        let found = state.modules.get_mut(module).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        if let Code::Own(kernel) = found.code
            && kernel.name() != name
        {
            return Err(CUresult::ERROR_NOT_FOUND);
        }
        let (context, code) = (found.context, found.code);
        let parameters = found.parameters.get(&name).cloned().unwrap_or_default();
        let handle = *found.functions.entry(name).or_insert_with(|| {
            let set = FxHashMap::default();
            state.functions.insert(Function { context, module, code, parameters, set })
        });
        Ok(handle)
    }

    /// Refuses the lookup of a variable. gpuheap's kernels have no variables, and the size of
    /// variables in other modules is unknown.
    fn refuse_global(
        &mut self,
        pointer: Out<CUdeviceptr>,
        bytes: Out<usize>,
        module: usize,
        name: In<c_char>,
    ) -> Outcome {
        // Either result may be null.
        if pointer.is_null() {
            bytes.require()?;
        }
        name.text()?;
        match self.state.modules.get(module) {
            Some(_) => Err(CUresult::ERROR_NOT_FOUND),
            None => Err(CUresult::ERROR_INVALID_HANDLE),
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

/// Returns the gpuheap kernel whose text equals an image. The whole text must match, so that no
/// other text runs under the name of a kernel.
fn parse_own_kernel(image: &str) -> Option<Kernel> {
    let (_, entry) = image.split_once(".visible .entry ")?;
    let (name, _) = entry.split_once('(')?;
    Kernel::parse(name).filter(|kernel| kernel.ptx() == image)
}
