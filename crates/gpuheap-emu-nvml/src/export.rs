//! Macro that exports functions.

/// Exports functions. Each row has the symbols, then the arguments after a name for the call, then
/// the body. The body returns an [`Outcome`](crate::code::Outcome).
macro_rules! functions {
    ($(fn $($symbol:ident)|+ ($($arguments:tt)*) $body:block)*) => {
        $(functions!(@each [$($symbol)+] ($($arguments)*) $body);)*

        /// Symbols of this table.
        pub(in crate::functions) const SYMBOLS: &[&str] = &[$($(stringify!($symbol)),+),*];
    };
    (@each [$($symbol:ident)+] $arguments:tt $body:block) => {
        $(functions!(@one $symbol $arguments $body);)+
    };
    (@one $symbol:ident ($nvml:ident $(, $argument:ident: $type:ty)*) $body:block) => {
        // SAFETY: the name is NVML's, and this library replaces NVML.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $symbol($($argument: $type),*) -> $crate::code::Code {
            $crate::library::call(stringify!($symbol), |$nvml| $body)
        }
    };
}
pub(crate) use functions;
