//! Options that the derive macro refuses.

use gpuheap::Adapt;

#[derive(Adapt)]
union Bits<A: Copy> {
    a: A,
    b: u32,
}

#[derive(Adapt)]
struct Both<A> {
    array: A,
    #[adapt(same)]
    copy: Option<A>,
}

#[derive(Adapt)]
struct Misspelt<A>(#[adapt(skipped)] A);

#[derive(Adapt)]
#[adapt(same)]
struct Same<A>(A);

#[derive(Adapt)]
struct Element<A>(#[adapt(element)] A);

fn main() {}
