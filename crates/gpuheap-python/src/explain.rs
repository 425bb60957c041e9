//! Explanations of out-of-memory errors, by the rules of `gpuheap explain`.

use pyo3::prelude::*;

use crate::failure::detached;

/// Program, cause, evidence, fix, `true` if the text's form is known from documentation alone, and
/// all of it as a text.
type Explained = (&'static str, String, Vec<(&'static str, u64)>, String, bool, String);

/// Explains a text in which an out-of-memory error is. `None` if no known error is in it.
#[pyfunction]
#[pyo3(signature = (text, width=80))]
pub(crate) fn _explain(py: Python<'_>, text: &str, width: usize) -> PyResult<Option<Explained>> {
    let found = detached(py, || {
        let host = gpuheap_doctor::machine::Host::here();
        // An error may be of another machine than the one on which it is explained.
        let on_wsl2 = host.is_ok_and(|host| host.is_wsl).then_some(true);
        let found = gpuheap_doctor::explain_error(text, on_wsl2)?;
        let rendered = found.render(width);
        Some((found, rendered))
    })?;
    Ok(found.map(|(found, rendered)| {
        (found.program, found.cause, found.evidence, found.fix, found.from_documentation, rendered)
    }))
}
