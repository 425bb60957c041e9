//! The derive macro of gpuheap. Use it as `gpuheap::Adapt`.

mod element;
mod options;
mod structure;

use proc_macro::TokenStream;
use syn::{DeriveInput, Error, parse_macro_input};

use options::Options;

/// Derives `Adapt`, the rule by which a struct or an enum is moved to a device and back. Each field
/// is adapted, and the type parameters become the types of the adapted fields.
///
/// A field whose type has no type parameter must be of a type that adapting does not change, such
/// as a number or a `String`. A type parameter stands for a whole array, such as `A = Vec<f32>`. If
/// the parameter is only the element, as in a field of type `Vec<T>`, the type cannot hold the
/// resulting `DeviceArray`. The compiler then reports a type mismatch in `Adapt::Output`.
///
/// | | |
/// |---|---|
/// | `#[adapt(same)]` on a field | the field is cloned, whatever its type; type parameters in it stay |
/// | `#[adapt(element)]` on the type | the type is plain data, an element of arrays, and is copied |
#[proc_macro_derive(Adapt, attributes(adapt))]
pub fn derive_adapt(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let rule = Options::from_type(&input.attrs).and_then(|options| match options.element {
        Some(_) => element::rule(&input),
        None => structure::rule(&input),
    });
    rule.unwrap_or_else(Error::into_compile_error).into()
}
