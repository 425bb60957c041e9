//! Options in `#[adapt(..)]`.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::{Attribute, Error, Result};

/// Options in the `#[adapt(...)]` attributes of a type or a field, with their spans.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) element: Option<Span>,
    pub(crate) same: Option<Span>,
}

impl Options {
    pub(crate) fn from_type(attributes: &[Attribute]) -> Result<Options> {
        let options = Options::parse(attributes)?;
        match options.same {
            Some(span) => Err(Error::new(span, "`same` is said of a field")),
            None => Ok(options),
        }
    }

    pub(crate) fn from_field(attributes: &[Attribute]) -> Result<Options> {
        let options = Options::parse(attributes)?;
        match options.element {
            Some(span) => Err(Error::new(span, "`element` is said of a struct or an enum")),
            None => Ok(options),
        }
    }

    fn parse(attributes: &[Attribute]) -> Result<Options> {
        let mut options = Options::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("adapt")) {
            attribute.parse_nested_meta(|meta| {
                let option = match meta.path.get_ident() {
                    Some(name) if name == "same" => &mut options.same,
                    Some(name) if name == "element" => &mut options.element,
                    _ => return Err(meta.error("`adapt` knows `same` and `element`")),
                };
                *option = Some(meta.path.span());
                Ok(())
            })?;
        }
        Ok(options)
    }
}
