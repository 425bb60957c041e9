//! Texts of programs that ran out of memory: their figures read again, one cause, one fix.

mod explanation;
mod python;
mod rest;
mod sizes;

pub use self::explanation::Explanation;

/// Explains a text in which an out-of-memory error is, with anything around it. `None` if there is
/// none that is known.
pub fn explain_error(text: &str) -> Option<Explanation> {
    // The particular ones first: most end with the driver's own words, which is what `bare` reads.
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
