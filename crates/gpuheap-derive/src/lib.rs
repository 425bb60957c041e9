//! The derive macro of gpuheap. Use it as `gpuheap::Adapt`.

mod element;
mod options;
mod structure;

use proc_macro::TokenStream;
use syn::{DeriveInput, Error, parse_macro_input};

use options::Options;

/// A rule for how a struct or an enum is moved to a device and back: each field is adapted, and the
/// type parameters become what they hold then.
///
/// A field whose type has no type parameter in it has to be of one that stays as it is, such as a
/// number or a `String`. A parameter stands for a whole array, as `A = Vec<f32>`; with one for the
/// element, as in a field `Vec<T>`, there is no place for the `DeviceArray` that becomes of it, and the
/// compiler speaks of a type mismatch in `Adapt::Output`.
///
/// | | |
/// |---|---|
/// | `#[adapt(same)]` on a field | it is cloned, whatever it is; type parameters in it stay |
/// | `#[adapt(element)]` on the type | it is plain data of which arrays are made, and is copied |
#[proc_macro_derive(Adapt, attributes(adapt))]
pub fn derive_adapt(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let rule = Options::of_type(&input.attrs).and_then(|options| match options.element {
        Some(_) => element::rule(&input),
        None => structure::rule(&input),
    });
    rule.unwrap_or_else(Error::into_compile_error).into()
}
