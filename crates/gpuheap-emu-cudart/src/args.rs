//! Arguments of the runtime's functions, and their way to the driver's.

use gpuheap_driver::{CUresult, abi};

pub(crate) type Out<T> = abi::Out<T, CUresult>;
pub(crate) type In<T> = abi::In<T, CUresult>;
pub(crate) type Text = abi::Text<CUresult>;

/// Calls a function of the driver with arguments of the program, and returns the outcome.
macro_rules! call {
    ($driver:expr, $function:ident($($arg:expr),* $(,)?)) => {{
        let driver: &::gpuheap_driver::LibCuda = $driver;
        // SAFETY: the arguments are those of the program's call, whose function has the contract of
        // the driver's one, or local places of their types.
        let code = unsafe {
            ::gpuheap_driver::Driver::$function(driver, $(::gpuheap_driver::abi::Raw::raw($arg)),*)
        };
        $crate::error::check(code)
    }};
}
pub(crate) use call;
