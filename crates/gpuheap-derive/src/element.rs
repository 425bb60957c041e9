//! Derives `Adapt` for plain data, which arrays may have as elements.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{DeriveInput, Result, parse_quote};

pub(crate) fn rule(input: &DeriveInput) -> Result<TokenStream> {
    let name = &input.ident;
    let mut generics = input.generics.clone();
    let (_, arguments, _) = input.generics.split_for_impl();
    if !generics.params.is_empty() {
        let where_clause = generics.make_where_clause();
        where_clause.predicates.push(parse_quote!(#name #arguments: ::gpuheap::Element));
    }
    let mut with_way = generics.clone();
    with_way.params.push(parse_quote!(__To));
    let (parameters, _, where_clause) = generics.split_for_impl();
    let (parameters_with_way, ..) = with_way.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #parameters_with_way ::gpuheap::Adapt<__To> for #name #arguments #where_clause {
            type Output = Self;

            fn adapt(&self, _: &__To) -> ::core::result::Result<Self, ::gpuheap::Error> {
                ::core::result::Result::Ok(*self)
            }
        }

        #[automatically_derived]
        impl #parameters ::gpuheap::adapt::Item for #name #arguments #where_clause {
            type Group = ::gpuheap::adapt::Elements;
        }

        #[automatically_derived]
        impl #parameters ::gpuheap::adapt::Plain for #name #arguments #where_clause {
            type Cu = Self;
            type Narrow = Self;

            fn cu(self) -> Self {
                self
            }

            fn narrow(self) -> Self {
                self
            }
        }
    })
}
