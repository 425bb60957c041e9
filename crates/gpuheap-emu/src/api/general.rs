//! The driver itself: initialisation, version, error texts, entry points.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use gpuheap_driver::*;
use rustc_hash::FxHashMap;

use crate::emulator::Call;
use crate::{In, Out, Outcome};

/// `CUdriverProcAddressQueryResult` for a symbol that does not exist.
const PROC_ADDRESS_SYMBOL_NOT_FOUND: c_int = 1;

impl Call<'_> {
    pub(crate) fn cuInit(&mut self, flags: c_uint) -> Outcome {
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if self.state.devices.is_empty() {
            return Err(CUresult::ERROR_NO_DEVICE);
        }
        let mut shown = self.state.options.shown();
        shown.sort_unstable();
        if shown.windows(2).any(|two| two[0] == two[1]) {
            return Err(CUresult::ERROR_INVALID_DEVICE);
        }
        self.state.initialised = true;
        self.shared.note_initialised();
        Ok(())
    }

    pub(crate) fn cuDriverGetVersion(&mut self, version: Out<c_int>) -> Outcome {
        version.write(self.state.options.driver_version)
    }

    pub(crate) fn cuGetErrorName(&mut self, error: CUresult, name: Out<*const c_char>) -> Outcome {
        write_text(name, error.name().map(|name| (error, false, name)))
    }

    pub(crate) fn cuGetErrorString(
        &mut self,
        error: CUresult,
        text: Out<*const c_char>,
    ) -> Outcome {
        write_text(text, error.driver_text().map(|text| (error, true, text)))
    }

    /// Refuses the lookup: an emulator within a process has no C symbols.
    pub(crate) fn cuGetProcAddress(
        &mut self,
        symbol: In<c_char>,
        function: Out<*mut c_void>,
        version: c_int,
        _flags: u64,
    ) -> Outcome {
        symbol.text()?;
        if version > self.state.options.driver_version {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        function.write(std::ptr::null_mut())?;
        Err(CUresult::ERROR_NOT_FOUND)
    }

    /// Refuses the lookup of an entry point, and writes the reason.
    pub(crate) fn cuGetProcAddress_v2(
        &mut self,
        symbol: In<c_char>,
        function: Out<*mut c_void>,
        version: c_int,
        flags: u64,
        status: Out<c_int>,
    ) -> Outcome {
        let outcome = self.cuGetProcAddress(symbol, function, version, flags);
        match outcome {
            Err(CUresult::ERROR_NOT_FOUND) if !status.is_null() => {
                status.write(PROC_ADDRESS_SYMBOL_NOT_FOUND)
            }
            outcome => outcome,
        }
    }

    /// Does nothing: no profiler collects data of an emulated device.
    pub(crate) fn cuProfilerStart(&mut self) -> Outcome {
        self.current().map(drop)
    }

    pub(crate) fn cuProfilerStop(&mut self) -> Outcome {
        self.current().map(drop)
    }

    /// Refuses the runtime's private tables.
    pub(crate) fn cuGetExportTable(
        &mut self,
        table: Out<*const c_void>,
        id: In<CUuuid>,
    ) -> Outcome {
        id.get()?;
        table.write(std::ptr::null())?;
        Err(CUresult::ERROR_NOT_FOUND)
    }
}

/// Writes a static C string. An unknown code gets a null pointer and `INVALID_VALUE`.
fn write_text(out: Out<*const c_char>, text: Option<(CUresult, bool, &str)>) -> Outcome {
    type Texts = FxHashMap<(CUresult, bool), CString>;
    static TEXTS: OnceLock<Texts> = OnceLock::new();
    let texts = TEXTS.get_or_init(|| {
        let known = (0..=999).map(CUresult);
        let both =
            known.flat_map(|code| [(code, false, code.name()), (code, true, code.driver_text())]);
        both.filter_map(|(code, long, text)| Some(((code, long), CString::new(text?).ok()?)))
            .collect()
    });
    match text.and_then(|(code, long, _)| texts.get(&(code, long))) {
        Some(text) => out.write(text.as_ptr()),
        None => {
            out.write(std::ptr::null())?;
            Err(CUresult::ERROR_INVALID_VALUE)
        }
    }
}
