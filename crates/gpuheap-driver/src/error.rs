//! Errors of failed driver calls.

use std::fmt;

use crate::{CUresult, function};

/// Error of a failed driver call, with the called function and the returned code.
///
/// The text names the failure and, if the cause is known, the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverError {
    function: &'static str,
    code: CUresult,
}

/// Returns `Ok` if `code` is success, else an error that names `function`, the called symbol.
pub fn check(function: &'static str, code: CUresult) -> Result<(), DriverError> {
    if code.is_success() { Ok(()) } else { Err(DriverError { function, code }) }
}

impl DriverError {
    /// Creates the error for `function`, the called symbol, and its `code`. The code is not
    /// success.
    pub fn new(function: &'static str, code: CUresult) -> DriverError {
        DriverError { function, code }
    }

    /// Returns the symbol that was called, such as `cuMemAlloc_v2`.
    pub fn function(&self) -> &'static str {
        self.function
    }

    /// Returns the code that the call returned.
    pub fn code(&self) -> CUresult {
        self.code
    }

    /// Returns whether the driver reported that memory ran out.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == CUresult::ERROR_OUT_OF_MEMORY
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.code == CUresult::MISSING_SYMBOL {
            let since = function(self.function).map_or(0, |found| found.since);
            return write!(
                f,
                "{} is not in the loaded libcuda; it came with CUDA {}.{}; install a driver at least that new",
                self.function,
                since / 1000,
                since % 1000 / 10,
            );
        }
        match self.code.text() {
            Some(text) => write!(f, "{} failed with {:?}: {text}", self.function, self.code),
            None => write!(
                f,
                "{} failed with {:?}, a code newer than this program knows",
                self.function, self.code
            ),
        }
    }
}

impl std::error::Error for DriverError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_function_and_remedy() {
        assert_eq!(check("cuInit", CUresult::SUCCESS), Ok(()));
        let missing = check("cuMemAllocAsync", CUresult::MISSING_SYMBOL).unwrap_err();
        assert_eq!(
            missing.to_string(),
            "cuMemAllocAsync is not in the loaded libcuda; it came with CUDA 11.2; install a driver at least that new"
        );
        let failed = check("cuMemAlloc_v2", CUresult::ERROR_OUT_OF_MEMORY).unwrap_err();
        assert!(failed.is_out_of_memory());
        assert_eq!(
            failed.to_string(),
            "cuMemAlloc_v2 failed with CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"
        );
    }
}
