//! cuBLASLt: descriptions of matrix products, and a heuristic that always returns one algorithm.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};

use gpuheap_driver::abi;
use gpuheap_driver::{CUstream, export};

use crate::cublas::{CublasCode, Out, Outcome, VERSION};
use crate::{device, workspaces};

/// Attributes that describe a matrix or an operation, as bytes. JAX reads the attributes back.
#[derive(Default)]
struct Attributes(BTreeMap<c_int, Vec<u8>>);

type Description = abi::Handle<Attributes, CublasCode>;
type In<T> = abi::In<T, CublasCode>;

impl Attributes {
    fn put(&mut self, attribute: c_int, bytes: &[u8]) {
        self.0.insert(attribute, bytes.to_vec());
    }
}

/// Result of the heuristic: `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
struct Heuristic {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

// Some functions declare fewer arguments than callers pass. The difference is harmless: in every C
// ABI of Unix, the caller cleans up the arguments after the call.
export! {
    fn cublasLtGetVersion() -> usize {
        VERSION
    }

    /// Returns the same text for every code.
    fn cublasGetStatusName | cublasGetStatusString | cublasLtGetStatusName |
        cublasLtGetStatusString() -> *const c_char
    {
        c"an error of cuBLAS in gpuheap's dry run".as_ptr()
    }

    /// Creates an object without attributes.
    fn cublasLtCreate | cublasLtMatmulPreferenceCreate | cublasLtMatrixTransformDescCreate
        (made: Out<Description>) -> Outcome
    {
        made.write(Description::new(Attributes::default()))
    }

    fn cublasLtMatmulDescCreate(made: Out<Description>, computed: c_int, scale: c_int) -> Outcome {
        let mut attributes = Attributes::default();
        attributes.put(0, &computed.to_ne_bytes());
        attributes.put(1, &scale.to_ne_bytes());
        made.write(Description::new(attributes))
    }

    fn cublasLtMatrixLayoutCreate(
        made: Out<Description>, kind: c_int, rows: u64, columns: u64, leading: i64,
    ) -> Outcome {
        let mut attributes = Attributes::default();
        attributes.put(0, &kind.to_ne_bytes());
        attributes.put(2, &rows.to_ne_bytes());
        attributes.put(3, &columns.to_ne_bytes());
        attributes.put(4, &leading.to_ne_bytes());
        attributes.put(5, &1_i32.to_ne_bytes());
        made.write(Description::new(attributes))
    }

    fn cublasLtDestroy | cublasLtMatmulDescDestroy | cublasLtMatmulPreferenceDestroy |
        cublasLtMatrixLayoutDestroy | cublasLtMatrixTransformDescDestroy(object: Description)
        -> Outcome
    {
        object.end()
    }

    fn cublasLtMatmulDescSetAttribute | cublasLtMatmulPreferenceSetAttribute |
        cublasLtMatrixLayoutSetAttribute(
        object: Description,
        attribute: c_int,
        value: In<u8>,
        bytes: usize,
    ) -> Outcome {
        let value = value.get_all(bytes)?;
        object.change(|attributes| attributes.put(attribute, &value))
    }

    /// Writes an attribute and its size. An attribute that was not set is written as zeros.
    fn cublasLtMatmulDescGetAttribute | cublasLtMatmulPreferenceGetAttribute |
        cublasLtMatrixLayoutGetAttribute(
        object: Description,
        attribute: c_int,
        value: Out<u8>,
        bytes: usize,
        written: Out<usize>,
    ) -> Outcome {
        let known = object.read(|attributes| attributes.0.get(&attribute).cloned())?;
        let mut known = known.unwrap_or_default();
        if bytes == 0 {
            return written.write(known.len());
        }
        known.resize(bytes, 0);
        value.write_all(known)?;
        written.write_if_wanted(bytes)
    }

    /// Enqueues an empty kernel on the stream.
    fn cublasLtMatmul(
        _handle: *const c_void, _operation: *const c_void, _alpha: *const c_void, _a: *const c_void,
        _a_layout: *const c_void, _b: *const c_void, _b_layout: *const c_void, _beta: *const c_void,
        _c: *const c_void, _c_layout: *const c_void, _d: *mut c_void, _d_layout: *const c_void,
        _algorithm: *const c_void, workspace: *mut c_void, workspace_bytes: usize, stream: CUstream,
    ) -> Outcome {
        workspaces::note_address(workspace);
        workspaces::note_size(workspace_bytes as u64);
        device::launch(stream);
        Ok(())
    }

    /// Writes one algorithm that needs no workspace.
    fn cublasLtMatmulAlgoGetHeuristic(
        _handle: *const c_void, _operation: *const c_void, _a: *const c_void, _b: *const c_void,
        _c: *const c_void, _d: *const c_void, _preference: *const c_void, wanted: c_int,
        found: Out<Heuristic>, count: Out<c_int>,
    ) -> Outcome {
        if wanted < 1 {
            return Err(CublasCode::INVALID_VALUE);
        }
        count.require()?;
        found.write(Heuristic {
            algorithm: [0; 8],
            workspace_bytes: 0,
            state: 0,
            waves: 1.0,
            reserved: [0; 4],
        })?;
        count.write(1)
    }
}
