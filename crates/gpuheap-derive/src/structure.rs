//! Derives `Adapt` for structs and enums. Each field is adapted by the rule of its own type.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::visit_mut::VisitMut;
use syn::{
    Data, DeriveInput, Error, Field, Fields, GenericParam, Generics, Ident, Index, Path, Result,
    Type, TypePath, WherePredicate, parse_quote, visit, visit_mut,
};

use crate::options::Options;

pub(crate) fn rule(input: &DeriveInput) -> Result<TokenStream> {
    let shapes: Vec<(TokenStream, &Fields)> = match &input.data {
        Data::Struct(data) => vec![(quote!(Self), &data.fields)],
        Data::Enum(data) => data
            .variants
            .iter()
            .map(|variant| {
                let name = &variant.ident;
                (quote!(Self::#name), &variant.fields)
            })
            .collect(),
        Data::Union(data) => {
            let why = "what is in a union is not known; implement `Adapt` by hand";
            return Err(Error::new(data.union_token.span(), why));
        }
    };
    let mut fields = Vec::new();
    for field in shapes.iter().flat_map(|(_, fields)| fields.iter()) {
        fields.push((field, How::from_field(field)?));
    }
    let parameters: Vec<Ident> =
        input.generics.type_params().map(|parameter| parameter.ident.clone()).collect();
    let adapted = adapted_parameters(&parameters, &fields)?;
    let way = Way { adapted, name: &input.ident };

    let name = &input.ident;
    let mut generics = input.generics.clone();
    let output = way.output_arguments(&generics);
    let bounds = way.bounds(&input.generics, &fields);
    generics.params.push(parse_quote!(__To));
    generics.make_where_clause().predicates.extend(bounds);
    let (parameters, _, where_clause) = generics.split_for_impl();
    let (own_parameters, arguments, own_where_clause) = input.generics.split_for_impl();

    let mut how = fields.iter().map(|(_, how)| *how);
    let arms = shapes.iter().map(|(path, fields)| {
        let how: Vec<How> = how.by_ref().take(fields.len()).collect();
        arm(name, path, fields, &how)
    });
    let body = match shapes.is_empty() {
        true => quote!(match *self {}),
        false => quote!(::core::result::Result::Ok(match self { #(#arms)* })),
    };
    Ok(quote! {
        #[automatically_derived]
        impl #parameters ::gpuheap::Adapt<__To> for #name #arguments #where_clause {
            type Output = #name #output;

            fn adapt(
                &self,
                __to: &__To,
            ) -> ::core::result::Result<Self::Output, ::gpuheap::Error> {
                #body
            }
        }

        #[automatically_derived]
        impl #own_parameters ::gpuheap::adapt::Item for #name #arguments #own_where_clause {
            type Group = ::gpuheap::adapt::Structures;
        }
    })
}

/// Treatment of a field.
#[derive(Clone, Copy, PartialEq)]
enum How {
    Adapted,
    Cloned,
    /// A `PhantomData` field. A new `PhantomData` of the adapted type replaces it.
    Phantom,
}

impl How {
    fn from_field(field: &Field) -> Result<How> {
        let is_same = Options::from_field(&field.attrs)?.same.is_some();
        Ok(match &field.ty {
            _ if is_same => How::Cloned,
            Type::Path(TypePath { path, .. }) if is_phantom(path) => How::Phantom,
            _ => How::Adapted,
        })
    }
}

fn is_phantom(path: &Path) -> bool {
    path.segments.last().is_some_and(|last| last.ident == "PhantomData")
}

fn adapted_parameters(parameters: &[Ident], fields: &[(&Field, How)]) -> Result<Vec<Ident>> {
    let mut adapted = Vec::new();
    for (field, _) in fields.iter().filter(|(_, how)| *how == How::Adapted) {
        adapted.extend(mentioned(&field.ty, parameters));
    }
    for (field, _) in fields.iter().filter(|(_, how)| *how == How::Cloned) {
        if let Some(parameter) = mentioned(&field.ty, &adapted).first() {
            let why = format!(
                "this field stays the same, but its type has the parameter `{parameter}` in it, \
                 which changes because another field is adapted; give it a parameter of its own"
            );
            return Err(Error::new(field.ty.span(), why));
        }
    }
    Ok(adapted)
}

/// Returns the elements of `names` that occur in a type.
fn mentioned(of: &Type, names: &[Ident]) -> Vec<Ident> {
    struct Names<'a> {
        names: &'a [Ident],
        found: Vec<Ident>,
    }

    impl<'ast> Visit<'ast> for Names<'_> {
        fn visit_path(&mut self, path: &'ast Path) {
            let first = path.segments.first().map(|segment| &segment.ident);
            if let Some(first) = first.filter(|first| self.names.contains(first)) {
                self.found.push(first.clone());
            }
            visit::visit_path(self, path);
        }
    }

    let mut visitor = Names { names, found: Vec::new() };
    visitor.visit_type(of);
    visitor.found
}

/// Names that the adapted type depends on.
struct Way<'a> {
    /// Type parameters that adapting the structure replaces.
    adapted: Vec<Ident>,
    name: &'a Ident,
}

impl Way<'_> {
    /// Returns the generic arguments of the adapted type.
    fn output_arguments(&self, generics: &Generics) -> TokenStream {
        if generics.params.is_empty() {
            return TokenStream::new();
        }
        let arguments = generics.params.iter().map(|parameter| match parameter {
            GenericParam::Lifetime(parameter) => {
                let lifetime = &parameter.lifetime;
                quote!(#lifetime)
            }
            GenericParam::Const(parameter) => {
                let name = &parameter.ident;
                quote!(#name)
            }
            GenericParam::Type(parameter) => {
                let name = &parameter.ident;
                match self.adapted.contains(name) {
                    true => {
                        let output = output_type(name);
                        quote!(#output)
                    }
                    false => quote!(#name),
                }
            }
        });
        quote!(<#(#arguments),*>)
    }

    /// Returns the bounds on the parameters.
    fn bounds(&self, generics: &Generics, fields: &[(&Field, How)]) -> Vec<WherePredicate> {
        let mut bounds: Vec<WherePredicate> = Vec::new();
        for parameter in generics.type_params() {
            let name = &parameter.ident;
            if !self.adapted.contains(name) {
                continue;
            }
            bounds.push(parse_quote!(#name: ::gpuheap::Adapt<__To>));
            // The adapted type has to satisfy the structure's own bounds too.
            if !parameter.bounds.is_empty() {
                let (output, asked) = (output_type(name), &parameter.bounds);
                let mut predicate: WherePredicate = parse_quote!(#output: #asked);
                Replace(self).in_bounds(&mut predicate);
                bounds.push(predicate);
            }
        }
        for predicate in generics.where_clause.iter().flat_map(|clause| &clause.predicates) {
            let mut arrived = predicate.clone();
            Replace(self).visit_where_predicate_mut(&mut arrived);
            bounds.push(arrived);
        }
        for (field, how) in fields {
            let of = &field.ty;
            match how {
                How::Phantom => {}
                How::Cloned => bounds.push(parse_quote!(#of: ::core::clone::Clone)),
                How::Adapted if mentioned(of, &self.adapted).is_empty() => {
                    // If the field's type contains the structure itself, the field needs no bound,
                    // because the rule being derived provides it.
                    if mentioned(of, std::slice::from_ref(self.name)).is_empty() {
                        bounds.push(parse_quote!(#of: ::gpuheap::adapt::Stays<__To>));
                    }
                }
                How::Adapted if is_parameter(of) => {}
                How::Adapted if mentioned(of, std::slice::from_ref(self.name)).is_empty() => {
                    let mut arrived = of.clone();
                    Replace(self).visit_type_mut(&mut arrived);
                    bounds.push(parse_quote!(#of: ::gpuheap::Adapt<__To, Output = #arrived>));
                }
                How::Adapted => {}
            }
        }
        bounds
    }
}

fn output_type(parameter: &Ident) -> Type {
    parse_quote!(<#parameter as ::gpuheap::Adapt<__To>>::Output)
}

/// Returns `true` if the type is a single name, such as a type parameter.
fn is_parameter(of: &Type) -> bool {
    matches!(of, Type::Path(TypePath { qself: None, path, .. }) if path.get_ident().is_some())
}

/// Replaces each parameter by its adapted type.
struct Replace<'a>(&'a Way<'a>);

impl Replace<'_> {
    /// Replaces parameters in the bounds of `predicate`, but not in the type on its left.
    fn in_bounds(&mut self, predicate: &mut WherePredicate) {
        if let WherePredicate::Type(predicate) = predicate {
            for bound in &mut predicate.bounds {
                self.visit_type_param_bound_mut(bound);
            }
        }
    }
}

impl VisitMut for Replace<'_> {
    fn visit_type_mut(&mut self, of: &mut Type) {
        if let Type::Path(TypePath { qself: None, path, .. }) = of
            && let Some(name) = path.get_ident()
            && self.0.adapted.contains(name)
        {
            *of = output_type(name);
            return;
        }
        visit_mut::visit_type_mut(self, of);
    }
}

/// Returns the arm of a `match` that handles one variant.
fn arm(name: &Ident, path: &TokenStream, fields: &Fields, how: &[How]) -> TokenStream {
    let members: Vec<TokenStream> = fields
        .iter()
        .enumerate()
        .map(|(nth, field)| match &field.ident {
            Some(name) => quote!(#name),
            None => {
                let index = Index::from(nth);
                quote!(#index)
            }
        })
        .collect();
    let bindings: Vec<Ident> = (0..fields.len())
        .map(|nth| format_ident!("__field_{nth}", span = Span::mixed_site()))
        .collect();
    let values = bindings.iter().zip(fields).zip(how).map(|((binding, field), how)| {
        let of = &field.ty;
        match how {
            How::Adapted => quote!(<#of as ::gpuheap::Adapt<__To>>::adapt(#binding, __to)?),
            How::Cloned => quote!(<#of as ::core::clone::Clone>::clone(#binding)),
            How::Phantom => quote!({
                let _ = #binding;
                ::core::marker::PhantomData
            }),
        }
    });
    // The adapted type may differ from `Self`.
    let mut arrived = path.clone().into_iter();
    arrived.next();
    quote!(#path { #(#members: #bindings),* } => #name #(#arrived)* { #(#members: #values),* },)
}
