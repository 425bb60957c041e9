//! Kernels: none are run. Gpuheap's own small kernels will be known here, by name and with a Rust
//! function for each; any other is refused.

use std::ffi::{c_char, c_int, c_uint, c_void};

use gpuheap_driver::*;

use crate::Outcome;
use crate::args::{In, Out};
use crate::check::FindingKind;
use crate::emulator::Call;

impl Call<'_> {
    pub(crate) fn cuModuleLoadData(&mut self, module: Out<CUmodule>, image: In<c_void>) -> Outcome {
        self.current()?;
        module.require()?;
        image.cast::<u8>().get()?;
        Err(self.refuse_kernels())
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

    pub(crate) fn cuModuleUnload(&mut self, _module: CUmodule) -> Outcome {
        self.current()?;
        Err(CUresult::ERROR_INVALID_HANDLE)
    }

    pub(crate) fn cuModuleGetFunction(
        &mut self,
        function: Out<CUfunction>,
        _module: CUmodule,
        name: In<c_char>,
    ) -> Outcome {
        self.current()?;
        function.require()?;
        name.text()?;
        Err(CUresult::ERROR_INVALID_HANDLE)
    }

    pub(crate) fn cuModuleGetGlobal_v2(
        &mut self,
        pointer: Out<CUdeviceptr>,
        bytes: Out<usize>,
        _module: CUmodule,
        name: In<c_char>,
    ) -> Outcome {
        self.current()?;
        // Either may be left out.
        if pointer.is_null() {
            bytes.require()?;
        }
        name.text()?;
        Err(CUresult::ERROR_INVALID_HANDLE)
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn cuLaunchKernel(
        &mut self,
        _function: CUfunction,
        _grid_x: c_uint,
        _grid_y: c_uint,
        _grid_z: c_uint,
        _block_x: c_uint,
        _block_y: c_uint,
        _block_z: c_uint,
        _shared_bytes: c_uint,
        stream: CUstream,
        _parameters: Out<*mut c_void>,
        _extra: Out<*mut c_void>,
    ) -> Outcome {
        self.stream(stream)?;
        Err(CUresult::ERROR_INVALID_HANDLE)
    }

    fn refuse_kernels(&mut self) -> CUresult {
        let text = format!(
            "{}: the emulated device runs no kernels; use a real device, or keep kernels out of what is emulated",
            self.symbol
        );
        self.find(FindingKind::KernelRefused, text);
        CUresult::ERROR_NOT_SUPPORTED
    }
}
