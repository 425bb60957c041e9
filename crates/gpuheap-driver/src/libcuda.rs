//! The machine's driver: libcuda, found at run time.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library;

use crate::blocks::LibraryChecks;
use crate::types::*;
use crate::{BlockChecks, CUresult, Driver, EMULATED_BLOCK, EmulatedBlock, cuda_functions};

/// Where libcuda is looked for, in this order. The first name goes through the system's loader
/// (`LD_LIBRARY_PATH`, the loader's cache); the others are where distributions and WSL2 put it
/// when that cache does not know it.
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

/// The oldest driver that gpuheap works with, as `cuDriverGetVersion` counts: 12.0.
const OLDEST_DRIVER: c_int = 12_000;

macro_rules! libcuda {
    ([] $($(#[$doc:meta])* $base:ident [$since:literal $symbol:ident $(, $pt_since:literal $pt_symbol:ident)?] ($($arg:ident: $type:ty),*);)*) => {
        /// One cell for each function, filled at its first use.
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

            $(unsafe fn $symbol(&self, $($arg: $type),*) -> CUresult {
                let symbol = self.symbols.$symbol.get_or_init(|| {
                    // SAFETY: the table gives this symbol the signature that cuda.h gives it.
                    unsafe { self.library.get(concat!(stringify!($symbol), "\0").as_bytes()) }.ok().map(|found| *found)
                });
                match symbol {
                    // SAFETY: the caller keeps the C function's contract; the library is never unloaded while self lives.
                    Some(symbol) => unsafe { symbol($($arg),*) },
                    None => CUresult::MISSING_SYMBOL,
                }
            })*
        }
    };
}

cuda_functions!(libcuda);

/// The real driver. Symbols are resolved at their first use; one that is missing makes its call
/// return [`CUresult::MISSING_SYMBOL`].
pub struct LibCuda {
    symbols: Symbols,
    library: Library,
    path: PathBuf,
    version: c_int,
    /// Only of an emulated libcuda with its checks on.
    block_checks: Option<LibraryChecks>,
}

impl LibCuda {
    /// Finds and initialises the driver. Blocks while the driver initialises (up to seconds on a
    /// machine with many devices); creates no context.
    ///
    /// # Errors
    ///
    /// No library in any of [`SEARCH_PATHS`], one that is no CUDA driver, one older than 12.0, or
    /// one that does not initialise.
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

    /// Initialises the driver that is the library at `path`, or of that name. Blocks as
    /// [`open`](LibCuda::open) does.
    ///
    /// # Safety
    ///
    /// The library is a CUDA driver, or one whose initialisers may run and that exports no symbol of
    /// a driver's. Loading runs its initialisers, and its symbols are called with the signatures of
    /// `cuda.h`.
    ///
    /// # Errors
    ///
    /// As [`open`](LibCuda::open).
    pub unsafe fn open_at(path: &Path) -> Result<LibCuda, OpenError> {
        // SAFETY: the caller says what the library is.
        match unsafe { Library::new(path) } {
            Ok(library) => LibCuda::initialise(library, path),
            Err(error) => {
                Err(OpenError::NotFound { tried: vec![(path.to_owned(), error.to_string())] })
            }
        }
    }

    /// The version of CUDA that the driver supports, as 1000 × major + 10 × minor.
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
        // The version first: a driver that is too old may not know how to say so in cuInit.
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
        // SAFETY: no pointers.
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

    /// The checks of an emulated libcuda, if they are on.
    fn find_block_checks(&self) -> Option<LibraryChecks> {
        // SAFETY: gpuheap's emulated libcuda alone has this symbol, with this type.
        let found = unsafe { self.library.get::<EmulatedBlock>(EMULATED_BLOCK.as_bytes()) }.ok()?;
        // SAFETY: it is that symbol, and the library is unloaded with `self`, after the result.
        unsafe { LibraryChecks::new(*found) }
    }
}

impl fmt::Debug for LibCuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LibCuda").field("path", &self.path).field("version", &self.version).finish()
    }
}

/// Why the machine's driver cannot be used. The text says what, where and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// No library could be loaded: each place with the loader's reason.
    NotFound {
        /// The places, in the order in which they were tried.
        tried: Vec<(PathBuf, String)>,
    },
    /// A library of that name that lacks what every driver has.
    NotADriver {
        /// Where it is.
        path: PathBuf,
        /// Symbol that it lacks.
        symbol: &'static str,
    },
    /// A driver older than 12.0.
    TooOld {
        /// Where it is.
        path: PathBuf,
        /// Its version, as 1000 × major + 10 × minor.
        found: i32,
    },
    /// A driver that is there and does not start.
    Initialise {
        /// Where it is.
        path: PathBuf,
        /// The function that failed.
        function: &'static str,
        /// Code that it returned.
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
    fn a_library_that_is_not_there_is_an_error_that_says_where_it_was_looked_for() {
        // SAFETY: there is no library.
        let error = unsafe { LibCuda::open_at(Path::new("/nowhere/libcuda.so.1")) }.unwrap_err();
        assert!(matches!(&error, OpenError::NotFound { tried } if tried.len() == 1));
        let text = error.to_string();
        assert!(text.contains("/nowhere/libcuda.so.1") && text.contains("install"), "{text}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_library_that_is_no_driver_is_an_error_that_names_what_it_lacks() {
        // SAFETY: the C library's mathematics have no symbol of a driver's.
        let error = unsafe { LibCuda::open_at(Path::new("libm.so.6")) }.unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("libm.so.6 is no CUDA driver"), "{text}");
        assert!(text.contains("cuDriverGetVersion"), "{text}");
    }

    #[test]
    fn a_driver_that_is_too_old_or_does_not_start_says_what_to_do() {
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
