//! Functions for the driver itself, such as initialisation, version, error texts and entry points.

use super::prelude::*;
use std::collections::BTreeMap;
use std::ffi::CString;

use parking_lot::Mutex;

/// `CUdriverProcAddressQueryResult` for a symbol that does not exist.
const PROC_ADDRESS_SYMBOL_NOT_FOUND: c_int = 1;

impl Call<'_> {
    pub(crate) fn cuInit(&mut self, flags: c_uint) -> Outcome {
        fail_if(flags != 0, INVALID_VALUE)?;
        fail_if(self.state.devices.is_empty(), CUresult::ERROR_NO_DEVICE)?;
        let mut shown = self.state.options.shown();
        shown.sort_unstable();
        fail_if(shown.windows(2).any(|two| two[0] == two[1]), CUresult::ERROR_INVALID_DEVICE)?;
        self.state.initialised = true;
        self.shared.note_initialised();
        Ok(())
    }

    pub(crate) fn cuDriverGetVersion(&mut self, version: Out<c_int>) -> Outcome {
        version.write(self.state.options.driver_version)
    }

    pub(crate) fn cuGetErrorName(&mut self, (error, name): args::cuGetErrorName) -> Outcome {
        write_text(name, error.name())
    }

    pub(crate) fn cuGetErrorString(&mut self, (error, text): args::cuGetErrorString) -> Outcome {
        write_text(text, error.driver_text())
    }

    /// Fails, because an emulator within a process exports no C symbols.
    pub(crate) fn cuGetProcAddress(
        &mut self,
        (symbol, function, version, _flags): args::cuGetProcAddress,
    ) -> Outcome {
        symbol.text()?;
        fail_if(version > self.state.options.driver_version, INVALID_VALUE)?;
        function.write(std::ptr::null_mut())?;
        Err(CUresult::ERROR_NOT_FOUND)
    }

    /// Reports in `status` that no entry point was found, because only the emulated libcuda exports
    /// symbols. Writes a null address. Fails if `status` is null.
    pub(crate) fn cuGetProcAddress_v2(
        &mut self,
        (symbol, function, version, flags, status): args::cuGetProcAddress_v2,
    ) -> Outcome {
        match self.cuGetProcAddress((symbol, function, version, flags)) {
            Err(CUresult::ERROR_NOT_FOUND) if !status.is_null() => {
                status.write(PROC_ADDRESS_SYMBOL_NOT_FOUND)
            }
            outcome => outcome,
        }
    }

    /// Does nothing, because no profiler collects data of an emulated device.
    pub(crate) fn cuProfilerStart(&mut self) -> Outcome {
        self.current().map(drop)
    }

    pub(crate) fn cuProfilerStop(&mut self) -> Outcome {
        self.current().map(drop)
    }

    /// Writes the state "running" for this process, and refuses any other process.
    pub(crate) fn cuCheckpointProcessGetState(
        &mut self,
        (pid, state): args::cuCheckpointProcessGetState,
    ) -> Outcome {
        fail_if(u32::try_from(pid) != Ok(std::process::id()), INVALID_VALUE)?;
        state.write(CUprocessState::RUNNING)
    }

    /// Refuses the runtime's private tables.
    pub(crate) fn cuGetExportTable(&mut self, (table, id): args::cuGetExportTable) -> Outcome {
        id.get()?;
        table.write(std::ptr::null())?;
        Err(CUresult::ERROR_NOT_FOUND)
    }
}

/// Writes a text as a C string that is never freed. If `text` is `None`, writes a null pointer and
/// fails with `INVALID_VALUE`.
fn write_text(out: Out<*const c_char>, text: Option<&'static str>) -> Outcome {
    static TEXTS: Mutex<BTreeMap<&str, CString>> = Mutex::new(BTreeMap::new());
    let Some(text) = text else {
        out.write(std::ptr::null())?;
        return Err(INVALID_VALUE);
    };
    let mut texts = TEXTS.lock();
    out.write(texts.entry(text).or_insert_with(|| CString::new(text).unwrap_or_default()).as_ptr())
}
