//! Replaces the functions that a program looks up by name.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use gpuheap_driver::abi::{Out, Text};
use gpuheap_driver::{CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CUresult, Lookup, lookup};

use crate::loader::{self, library_of, loaders_search};
use crate::{Answer, Real};

/// Endings that CUDA adds to a base name to form the names of its symbols.
const VARIANTS: [&str; 8] = ["", "_v2", "_ptsz", "_v2_ptsz", "_ptds", "_v2_ptds", "_v3", "_v4"];

/// The functions of a preloaded library that replace CUDA's functions.
#[derive(Debug)]
pub struct Catcher {
    find: fn(&str) -> Option<(*mut c_void, &'static Real)>,
}

impl Catcher {
    /// Makes a catcher. `find` takes the name of a CUDA function. It returns this library's
    /// replacement, and the [`Real`] that calls CUDA's own function.
    pub const fn new(find: fn(&str) -> Option<(*mut c_void, &'static Real)>) -> Catcher {
        Catcher { find }
    }

    /// Returns this library's function that replaces `symbol`.
    pub fn own_address(&self, symbol: &str) -> Option<*mut c_void> {
        (self.find)(symbol).map(|(own, _)| own)
    }

    /// Records `address` as the real function of `symbol`, unless `address` is this library's own.
    pub fn note(&self, symbol: &str, address: *mut c_void) {
        if let Some((own, real)) = (self.find)(symbol)
            && own != address
        {
            real.note(address);
        }
    }

    /// Returns `true` if a loaded CUDA library contains the real function `symbol`.
    fn is_loaded(&self, symbol: &str) -> bool {
        (self.find)(symbol).is_some_and(|(_, real)| real.address().is_some())
    }

    /// Answers a `dlsym` call from the code at `caller`.
    ///
    /// # Safety
    ///
    /// The arguments satisfy the contract of `dlsym`.
    pub unsafe fn answer(
        &self,
        handle: *mut c_void,
        symbol: *const c_char,
        caller: *const c_void,
    ) -> Answer {
        let answer = Answer { ours: ptr::null_mut(), loaders: loaders_search() };
        let Some(dlsym) = answer.loaders else { return answer };
        // A library that passes `RTLD_NEXT` wraps CUDA too, and needs the next library's function.
        if symbol.is_null() || handle == libc::RTLD_NEXT {
            return answer;
        }
        // SAFETY: by the contract of `dlsym`, a symbol that is not null is a C string.
        let Ok(name) = unsafe { CStr::from_ptr(symbol) }.to_str() else { return answer };
        let Some(ours) = self.own_address(name) else { return answer };
        if library_of(caller) == library_of(ours) {
            return answer;
        }
        // SAFETY: the caller keeps the contract of `dlsym`.
        let found = unsafe { dlsym(handle, symbol) };
        // On WSL2, a stub driver looks up the functions of the real driver. If these lookups
        // returned this library's functions, the stub would call itself without end.
        if found.is_null() || loader::is_in_driver(caller) {
            return answer;
        }
        // The lookup found this library's function, but CUDA is not loaded. So searches again in
        // the libraries after this one. The search fails and sets `dlerror`, as the program
        // expects.
        if found == ours && !self.is_loaded(name) {
            // SAFETY: the search starts after this library, and only CUDA has a function of this
            // name.
            unsafe { dlsym(libc::RTLD_NEXT, symbol) };
            return Answer { loaders: None, ..answer };
        }
        self.note(name, found);
        Answer { ours, ..answer }
    }

    /// Replaces the result of `cuGetProcAddress` with this library's function, if it has one. The
    /// address shows which variant the driver chose. If the driver exports no symbol at this
    /// address, the name, the version and the flags decide.
    ///
    /// # Errors
    ///
    /// Returns an error if a pointer is null.
    pub fn replace(
        &self,
        base: Text<CUresult>,
        function: Out<*mut c_void, CUresult>,
        version: c_int,
        flags: u64,
    ) -> Result<(), CUresult> {
        let found = function.get()?;
        if found.is_null() {
            return Ok(());
        }
        let base = &*base.text()?;
        let of_address = VARIANTS.iter().find_map(|ending| {
            let symbol = format!("{base}{ending}");
            let (_, real) = (self.find)(&symbol)?;
            real.is_at(found).then_some(symbol)
        });
        let symbol = match of_address {
            Some(symbol) => symbol,
            // `found` is a function that the driver exports, but this library does not replace.
            None if loader::is_symbol(found) => return Ok(()),
            None => self.variant(base, version, flags),
        };
        match self.own_address(&symbol) {
            Some(ours) => {
                self.note(&symbol, found);
                function.write(ours)
            }
            None => Ok(()),
        }
    }

    /// Returns the symbol that `cuGetProcAddress` finds, by the rules of CUDA.
    fn variant(&self, base: &str, version: c_int, flags: u64) -> String {
        let per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM != 0;
        let (twin, second) = (format!("{base}_ptsz"), format!("{base}_v2"));
        match lookup(base, version, per_thread) {
            Lookup::Found(symbol) => symbol.to_owned(),
            // The driver crate's table lacks a few functions. For such a function, this library has
            // a `_ptsz` variant only if the driver has one too.
            _ if per_thread && self.own_address(&twin).is_some() => twin,
            // The table also lacks functions for arrays and IPC handles. From version 11.0 on, the
            // driver returns their `_v2` variants.
            Lookup::NotFound if version >= 11_000 && self.own_address(&second).is_some() => second,
            _ => base.to_owned(),
        }
    }
}
