//! Exported functions, one table for each subject.

/// Exports functions. A row has the symbols, a name for the call's state, the arguments and the
/// body. The body returns an [`Outcome`](crate::code::Outcome).
///
/// A row of `figures` exports a function that writes one figure of a device. The row has the
/// symbols, and a closure that returns the figure, or `None` if the device lacks it. Functions
/// listed under `unsupported` return `NOT_SUPPORTED` for every device. They declare only the device
/// argument: in every C ABI of Unix, the caller removes the other arguments.
macro_rules! functions {
    (unsupported { $($symbol:ident)* } $($rest:tt)*) => {
        functions! {
            $($rest)*
            $(fn $symbol(nvml, device: $crate::args::Handle) {
                nvml.device(device)?;
                Err($crate::code::Code::NOT_SUPPORTED)
            })*
        }
    };
    (figures { $($($figure:ident)|+: $read:expr;)* } $($rest:tt)*) => {
        functions! {
            $(fn $($figure)|+ (nvml, device: $crate::args::Handle, place: $crate::args::Out<u32>) {
                let read: fn(&$crate::description::Device) -> Option<u32> = $read;
                $crate::args::write_if_known(place, read(nvml.device(device)?))
            })*
            $($rest)*
        }
    };
    ($(fn $($symbol:ident)|+ ($nvml:ident $(, $argument:ident: $type:ty)* $(,)?) $body:block)*) => {
        $(functions!(@each [$($symbol)+] $nvml ($($argument: $type),*) $body);)*

        /// Symbols of this table.
        pub(in crate::functions) const SYMBOLS: &[&str] = &[$($(stringify!($symbol)),+),*];
    };
    (@each [$($symbol:ident)+] $nvml:ident $arguments:tt $body:block) => {
        $(functions!(@one $symbol $nvml $arguments $body);)+
    };
    (@one $symbol:ident $nvml:ident ($($argument:ident: $type:ty),*) $body:block) => {
        gpuheap_driver::export! {
            fn $symbol($($argument: $type),*) -> $crate::code::Outcome {
                $crate::library::call(stringify!($symbol), |$nvml| $body)
            }
        }
    };
}

mod figures;
mod identity;
mod instances;
mod memory;
mod system;

/// Returns `true` if a function of this name is exported.
pub(crate) fn is_served(symbol: &str) -> bool {
    let tables =
        [system::SYMBOLS, identity::SYMBOLS, memory::SYMBOLS, figures::SYMBOLS, instances::SYMBOLS];
    tables.iter().any(|table| table.contains(&symbol))
}
