//! The machine's driver: libcuda, found at run time.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library;

use crate::blocks::LibraryChecks;
use crate::types::*;
use crate::{
    BlockChecks, CUresult, Driver, EMULATED_BLOCK, EMULATED_REQUEST, EmulatedBlock,
    EmulatedRequest, RequestReports, cuda_functions,
};

/// Names and paths at which libcuda is searched, in this order. The first entry is a name: the
/// system's loader resolves it with `LD_LIBRARY_PATH` and the loader's cache. The other entries are
/// paths that distributions and WSL2 use, for libraries outside that cache.
pub const SEARCH_PATHS: &[&str] = if cfg!(windows) {
    &["nvcuda.dll"]
} else {
    &[
        "libcuda.so.1",
        "/usr/lib/wsl/lib/libcuda.so.1",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
        "/usr/lib64/libcuda.so.1",
        "/usr/local/nvidia/lib64/libcuda.so.1",
        "/run/opengl-driver/lib/libcuda.so.1",
    ]
};

/// Oldest version of the driver that gpuheap works with: 12.0, in the form of `cuDriverGetVersion`.
const OLDEST_DRIVER: c_int = 12_000;

macro_rules! libcuda {
    ([] $($(#[$doc:meta])* $base:ident [$since:literal $symbol:ident $(, $pt_since:literal $pt_symbol:ident)?] ($($arg:ident: $type:ty),*);)*) => {
        /// Addresses of the functions. A cell is filled at the function's first use.
        #[allow(non_snake_case)]
        #[derive(Default)]
        struct Symbols {
            $($symbol: OnceLock<Option<unsafe extern "C" fn($($type),*) -> CUresult>>,)*
        }

        #[allow(non_snake_case)]
        impl Driver for LibCuda {
            fn describe(&self) -> String {
                format!("CUDA driver {}.{} at {}", self.version / 1000, self.version % 1000 / 10, self.path.display())
            }

            fn block_checks(&self) -> Option<&dyn BlockChecks> {
                self.block_checks.as_ref().map(|checks| checks as &dyn BlockChecks)
            }

            fn request_reports(&self) -> Option<RequestReports<'_>> {
                let symbol = EMULATED_REQUEST.as_bytes();
                // SAFETY: only gpuheap's emulated libcuda exports this symbol, with this type.
                let found = unsafe { self.library.get::<EmulatedRequest>(symbol) }.ok()?;
                // SAFETY: the symbol is `EMULATED_REQUEST`. The library is unloaded with `self`,
                // which the result borrows.
                Some(unsafe { RequestReports::new(*found) })
            }

            $(unsafe fn $symbol(&self, $($arg: $type),*) -> CUresult {
                let symbol = self.symbols.$symbol.get_or_init(|| {
                    // SAFETY: the table and `cuda.h` have the same signature for this symbol.
                    unsafe { self.library.get(concat!(stringify!($symbol), "\0").as_bytes()) }.ok().map(|found| *found)
                });
                match symbol {
                    // SAFETY: the caller keeps the C function's contract. The library is not
                    // unloaded while `self` lives.
                    Some(symbol) => unsafe { symbol($($arg),*) },
                    None => CUresult::MISSING_SYMBOL,
                }
            })*
        }
    };
}

cuda_functions!(libcuda);

/// The real driver. Each symbol is resolved at its first use. A call of a missing symbol returns
/// [`CUresult::MISSING_SYMBOL`].
pub struct LibCuda {
    symbols: Symbols,
    library: Library,
    path: PathBuf,
    version: c_int,
    /// Block checks; `None` if they are off, or libcuda is not emulated.
    block_checks: Option<LibraryChecks>,
}

impl LibCuda {
    /// Finds and initialises the driver. Creates no context.
    ///
    /// Blocks while the driver initialises: up to seconds on a machine with many devices.
    ///
    /// # Errors
    ///
    /// Returns [`OpenError`] if no library is found at [`SEARCH_PATHS`], or if the library is not a
    /// CUDA driver, is older than 12.0, or does not initialise.
    pub fn open() -> Result<LibCuda, OpenError> {
        let mut tried = Vec::new();
        for path in SEARCH_PATHS {
            // SAFETY: loading NVIDIA's driver runs its initialisers, as every CUDA program does.
            match unsafe { Library::new(*path) } {
                Ok(library) => return LibCuda::initialise(library, Path::new(path)),
                Err(error) => tried.push((PathBuf::from(path), error.to_string())),
            }
        }
        Err(OpenError::NotFound { tried })
    }

    /// Loads the library `path`, a path or a name, and initialises it as the driver. Blocks like
    /// [`open`](LibCuda::open).
    ///
    /// # Safety
    ///
    /// The library is a CUDA driver, or it exports no symbol of a driver and its initialisers are
    /// safe to run. Loading runs the initialisers. The driver's symbols are called with the
    /// signatures of `cuda.h`.
    ///
    /// # Errors
    ///
    /// [`OpenError`] if the library cannot be loaded, is not a CUDA driver, is older than 12.0, or
    /// does not initialise.
    pub unsafe fn open_at(path: &Path) -> Result<LibCuda, OpenError> {
        // SAFETY: the caller guarantees that the library is of an allowed kind.
        match unsafe { Library::new(path) } {
            Ok(library) => LibCuda::initialise(library, path),
            Err(error) => {
                Err(OpenError::NotFound { tried: vec![(path.to_owned(), error.to_string())] })
            }
        }
    }

    /// Returns the version of CUDA that the driver supports, as 1000 × major + 10 × minor.
    pub fn version(&self) -> i32 {
        self.version
    }

    fn initialise(library: Library, path: &Path) -> Result<LibCuda, OpenError> {
        let mut driver = LibCuda {
            symbols: Symbols::default(),
            library,
            path: path.to_owned(),
            version: 0,
            block_checks: None,
        };
        let path = || path.to_owned();
        // Reads the version first: if the driver is too old, `cuInit` may return another error.
        let mut version = 0;
        // SAFETY: the pointer is valid for a write.
        match unsafe { driver.cuDriverGetVersion(&mut version) } {
            CUresult::SUCCESS => {}
            CUresult::MISSING_SYMBOL => {
                return Err(OpenError::NotADriver { path: path(), symbol: "cuDriverGetVersion" });
            }
            code => {
                return Err(OpenError::Initialise {
                    path: path(),
                    function: "cuDriverGetVersion",
                    code,
                });
            }
        }
        if version < OLDEST_DRIVER {
            return Err(OpenError::TooOld { path: path(), found: version });
        }
        driver.version = version;
        // SAFETY: the function takes no pointers.
        match unsafe { driver.cuInit(0) } {
            CUresult::SUCCESS => {
                driver.block_checks = driver.find_block_checks();
                Ok(driver)
            }
            CUresult::MISSING_SYMBOL => {
                Err(OpenError::NotADriver { path: path(), symbol: "cuInit" })
            }
            code => Err(OpenError::Initialise { path: path(), function: "cuInit", code }),
        }
    }

    /// Returns the block checks; `None` if they are off, or libcuda is not emulated.
    fn find_block_checks(&self) -> Option<LibraryChecks> {
        // SAFETY: only gpuheap's emulated libcuda exports this symbol, with this type.
        let found = unsafe { self.library.get::<EmulatedBlock>(EMULATED_BLOCK.as_bytes()) }.ok()?;
        // SAFETY: the symbol is `EMULATED_BLOCK`. The library stays loaded until `self` is dropped,
        // and `self` holds the result.
        unsafe { LibraryChecks::new(*found) }
    }
}

impl fmt::Debug for LibCuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LibCuda").field("path", &self.path).field("version", &self.version).finish()
    }
}

/// Reason why the machine's driver cannot be used. The text names the failed step, the library's
/// path, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// No library could be loaded.
    NotFound {
        /// Names and paths in the order in which they were tried, each with the loader's reason.
        tried: Vec<(PathBuf, String)>,
    },
    /// A library with the driver's name lacks a symbol that every driver has.
    NotADriver {
        /// Path of the library.
        path: PathBuf,
        /// Symbol that the library lacks.
        symbol: &'static str,
    },
    /// The driver is older than 12.0.
    TooOld {
        /// Path of the library.
        path: PathBuf,
        /// Version, as 1000 × major + 10 × minor.
        found: i32,
    },
    /// The driver was found, but does not initialise.
    Initialise {
        /// Path of the library.
        path: PathBuf,
        /// Function that failed.
        function: &'static str,
        /// Code that the function returned.
        code: CUresult,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NotFound { tried } => {
                let names: Vec<_> =
                    tried.iter().map(|(path, _)| path.display().to_string()).collect();
                write!(f, "no CUDA driver: libcuda was not found as {}", names.join(", "))?;
                if let Some((_, reason)) = tried.iter().find(|(path, _)| path.is_file()) {
                    write!(f, " (one is there and does not load: {reason})")?;
                }
                write!(
                    f,
                    "; install NVIDIA's driver (on WSL2: on Windows, not inside WSL), or use an emulated device, such as emulated:16GiB"
                )
            }
            OpenError::NotADriver { path, symbol } => write!(
                f,
                "{} is no CUDA driver: it has no {symbol}; remove it from the library path or put NVIDIA's before it",
                path.display()
            ),
            OpenError::TooOld { path, found } => write!(
                f,
                "the CUDA driver at {} supports CUDA {}.{} and gpuheap needs {}.{}; install a driver of the 525 branch or newer",
                path.display(),
                found / 1000,
                found % 1000 / 10,
                OLDEST_DRIVER / 1000,
                OLDEST_DRIVER % 1000 / 10,
            ),
            OpenError::Initialise { path, function, code } => {
                write!(
                    f,
                    "the CUDA driver at {} does not start: {function} returned {code:?}",
                    path.display()
                )?;
                if let Some(text) = code.text() {
                    write!(f, ", {text}")?;
                }
                match *code {
                    CUresult::ERROR_NO_DEVICE => write!(
                        f,
                        "; check that nvidia-smi lists a device and that CUDA_VISIBLE_DEVICES does not hide it"
                    ),
                    CUresult::ERROR_SYSTEM_DRIVER_MISMATCH => write!(
                        f,
                        "; reboot, or reload the kernel module, after the driver's update"
                    ),
                    CUresult::ERROR_STUB_LIBRARY => write!(
                        f,
                        "; put the driver's own library before the toolkit's stubs in the library path"
                    ),
                    _ => write!(f, "; check that nvidia-smi works"),
                }
            }
        }
    }
}

impl std::error::Error for OpenError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_lists_searched_places() {
        // SAFETY: no library is at this path.
        let error = unsafe { LibCuda::open_at(Path::new("/nowhere/libcuda.so.1")) }.unwrap_err();
        assert!(matches!(&error, OpenError::NotFound { tried } if tried.len() == 1));
        let text = error.to_string();
        assert!(text.contains("/nowhere/libcuda.so.1") && text.contains("install"), "{text}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn wrong_library_names_missing_symbol() {
        // SAFETY: libm, the C library's mathematical functions, exports no symbol of a driver.
        let error = unsafe { LibCuda::open_at(Path::new("libm.so.6")) }.unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("libm.so.6 is no CUDA driver"), "{text}");
        assert!(text.contains("cuDriverGetVersion"), "{text}");
    }

    #[test]
    fn unusable_driver_error_has_remedy() {
        let path = PathBuf::from("libcuda.so.1");
        assert_eq!(
            OpenError::TooOld { path: path.clone(), found: 11_080 }.to_string(),
            "the CUDA driver at libcuda.so.1 supports CUDA 11.8 and gpuheap needs 12.0; install a \
             driver of the 525 branch or newer"
        );
        let code = CUresult::ERROR_NO_DEVICE;
        let text = OpenError::Initialise { path, function: "cuInit", code }.to_string();
        assert!(text.contains("cuInit returned CUDA_ERROR_NO_DEVICE (100)"), "{text}");
        assert!(text.contains("CUDA_VISIBLE_DEVICES"), "{text}");
    }
}
