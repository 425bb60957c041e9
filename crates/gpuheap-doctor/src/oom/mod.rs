//! Texts of out-of-memory errors: their figures, one cause and one fix.

mod explanation;
mod python;
mod rest;
mod sizes;

pub use self::explanation::Explanation;

/// Explains an out-of-memory error anywhere in a text. `None` if no known error is in it.
pub fn explain_error(text: &str) -> Option<Explanation> {
    // Specific readers come first. Most texts end with the driver's own words, which `bare` reads.
    let readers: [fn(&str) -> Option<Explanation>; 10] = [
        rest::gpuheap,
        python::torch,
        python::rmm,
        python::cupy,
        python::jax,
        rest::julia,
        python::pycuda,
        python::numba,
        rest::cudarc,
        rest::bare,
    ];
    readers.iter().find_map(|read| read(text))
}
