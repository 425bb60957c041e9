//! Modules and libraries of kernels. gpuheap's own modules are recognised by their text. Any other
//! module is refused, or loaded with launches that do nothing.

use std::ffi::{c_char, c_int, c_uint, c_void};

use gpuheap_driver::*;
use rustc_hash::FxHashMap;

use crate::emulator::Call;
use crate::finding::FindingKind;
use crate::kernels::Kernel;
use crate::options::Kernels;
use crate::state::module::{Code, Function, Module};
use crate::state::parameters::{Image, Parameters};
use crate::{In, Out, Outcome};

/// Value that `cuModuleGetLoadingMode` writes for a driver that loads kernels at their first use.
const LAZY: c_int = 2;

impl Call<'_> {
    pub(crate) fn cuModuleLoadData(&mut self, module: Out<CUmodule>, image: In<c_void>) -> Outcome {
        let context = self.current()?;
        module.require()?;
        let code = self.code_of(&Image::at(image)?)?;
        self.add_module(module, Some(context), code)
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

    pub(crate) fn cuModuleLoadFatBinary(
        &mut self,
        module: Out<CUmodule>,
        image: In<c_void>,
    ) -> Outcome {
        self.cuModuleLoadData(module, image)
    }

    pub(crate) fn cuModuleLoad(&mut self, module: Out<CUmodule>, file: In<c_char>) -> Outcome {
        let context = self.current()?;
        module.require()?;
        let code = self.code_of(&Image::from_file(file)?)?;
        self.add_module(module, Some(context), code)
    }

    pub(crate) fn cuModuleUnload(&mut self, module: CUmodule) -> Outcome {
        self.current()?;
        let gone = self.state.modules.remove(module.0).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        self.remove_functions(gone);
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
        let handle = self.function_of(module.0, name)?;
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
        self.global_of(pointer, bytes, module.0, name)
    }

    pub(crate) fn cuModuleGetLoadingMode(&mut self, mode: Out<c_int>) -> Outcome {
        self.initialised()?;
        mode.write(LAZY)
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn cuLibraryLoadData(
        &mut self,
        library: Out<CUlibrary>,
        image: In<c_void>,
        _jit_options: Out<c_int>,
        _jit_values: Out<*mut c_void>,
        _jit_count: c_uint,
        _options: Out<c_int>,
        _values: Out<*mut c_void>,
        _count: c_uint,
    ) -> Outcome {
        self.initialised()?;
        library.require()?;
        let code = self.code_of(&Image::at(image)?)?;
        self.add_module(library.cast(), None, code)
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn cuLibraryLoadFromFile(
        &mut self,
        library: Out<CUlibrary>,
        file: In<c_char>,
        _jit_options: Out<c_int>,
        _jit_values: Out<*mut c_void>,
        _jit_count: c_uint,
        _options: Out<c_int>,
        _values: Out<*mut c_void>,
        _count: c_uint,
    ) -> Outcome {
        self.initialised()?;
        library.require()?;
        let code = self.code_of(&Image::from_file(file)?)?;
        self.add_module(library.cast(), None, code)
    }

    pub(crate) fn cuLibraryUnload(&mut self, library: CUlibrary) -> Outcome {
        self.initialised()?;
        let gone = self.state.modules.remove(library.0).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        self.remove_functions(gone);
        Ok(())
    }

    pub(crate) fn cuLibraryGetKernel(
        &mut self,
        kernel: Out<CUkernel>,
        library: CUlibrary,
        name: In<c_char>,
    ) -> Outcome {
        self.initialised()?;
        kernel.require()?;
        let handle = self.function_of(library.0, name)?;
        kernel.write(CUkernel(handle))
    }

    /// Writes the library's own handle as the module, because every context has the kernels of a
    /// library.
    pub(crate) fn cuLibraryGetModule(
        &mut self,
        module: Out<CUmodule>,
        library: CUlibrary,
    ) -> Outcome {
        self.current()?;
        self.state.modules.get(library.0).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        module.write(CUmodule(library.0))
    }

    pub(crate) fn cuLibraryGetGlobal(
        &mut self,
        pointer: Out<CUdeviceptr>,
        bytes: Out<usize>,
        library: CUlibrary,
        name: In<c_char>,
    ) -> Outcome {
        self.current()?;
        self.global_of(pointer, bytes, library.0, name)
    }

    pub(crate) fn cuKernelGetFunction(
        &mut self,
        function: Out<CUfunction>,
        kernel: CUkernel,
    ) -> Outcome {
        self.current()?;
        self.state.functions.get(kernel.0).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        function.write(CUfunction(kernel.0))
    }

    pub(crate) fn cuFuncGetModule(
        &mut self,
        module: Out<CUmodule>,
        function: CUfunction,
    ) -> Outcome {
        let found = self.state.functions.get(function.0).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        module.write(CUmodule(found.module))
    }

    /// Refuses the call if the emulator refuses kernels other than gpuheap's. The figures that the
    /// call returns would be invented.
    pub(crate) fn kernels_are_no_ops(&self) -> Outcome {
        match self.state.options.kernels {
            Kernels::Own => Err(CUresult::ERROR_NOT_SUPPORTED),
            Kernels::NoOp => Ok(()),
        }
    }

    /// Unloads the modules of a context that ends. Libraries stay.
    pub(super) fn unload_all_of(&mut self, context: u32) {
        let of = |(index, owner): (u32, Option<u32>)| (owner == Some(context)).then_some(index);
        let modules = self.state.modules.iter().map(|(index, found)| (index, found.context));
        for index in modules.filter_map(of).collect::<Vec<_>>() {
            self.state.modules.remove_at(index);
        }
        let functions = self.state.functions.iter().map(|(index, found)| (index, found.context));
        for index in functions.filter_map(of).collect::<Vec<_>>() {
            self.state.functions.remove_at(index);
        }
    }

    /// Returns the code of an image, and the parameters of the image's kernels.
    fn code_of(&mut self, image: &Image) -> Outcome<(Code, Parameters)> {
        let own = match image {
            Image::Ptx(text) => kernel_of(text),
            Image::Elf(_) | Image::Unknown => None,
        };
        match (own, self.state.options.kernels) {
            (Some(kernel), _) => Ok((Code::Own(kernel), Parameters::default())),
            (None, Kernels::NoOp) => Ok((Code::Foreign, image.parameters())),
            (None, Kernels::Own) => Err(self.refuse_kernels()),
        }
    }

    fn add_module(
        &mut self,
        module: Out<CUmodule>,
        context: Option<u32>,
        (code, parameters): (Code, Parameters),
    ) -> Outcome {
        let loaded = Module { context, code, parameters, functions: FxHashMap::default() };
        module.write(CUmodule(self.state.modules.insert(loaded)))
    }

    /// Returns the handle of the kernel `name` of a module or library.
    fn function_of(&mut self, module: usize, name: In<c_char>) -> Outcome<usize> {
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
    fn global_of(
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

    fn remove_functions(&mut self, gone: Module) {
        for function in gone.functions.into_values() {
            self.state.functions.remove(function);
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
fn kernel_of(image: &str) -> Option<Kernel> {
    let (_, entry) = image.split_once(".visible .entry ")?;
    let (name, _) = entry.split_once('(')?;
    Kernel::parse(name).filter(|kernel| kernel.ptx() == image)
}
