//! cuSPARSE: matrices, and the work areas of their products. Computes nothing.

mod workspace;

use std::ffi::{c_int, c_void};

use gpuheap_driver::abi::{self, Code};
use gpuheap_driver::{CUstream, export};

use crate::device::{self, Loaded};
use crate::report;
use workspace::{Layout, Operand};

/// Version of cuSPARSE to return: 12.6, of CUDA 13.0.
const VERSION: c_int = 12_600;

/// Result code of a cuSPARSE function.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct CusparseCode(c_int);

impl CusparseCode {
    const ALLOC_FAILED: Self = Self(2);
}

impl Code for CusparseCode {
    const SUCCESS: Self = Self(0);
    /// `CUSPARSE_STATUS_INVALID_VALUE`.
    const NULL: Self = Self(3);
    /// `CUSPARSE_STATUS_NOT_INITIALIZED`.
    const NO_OBJECT: Self = Self(1);
    /// `CUSPARSE_STATUS_INTERNAL_ERROR`.
    const PANICKED: Self = Self(7);
}

type Outcome = Result<(), CusparseCode>;
type Out<T> = abi::Out<T, CusparseCode>;
type Handle = abi::Handle<CusparseSession, CusparseCode>;
type Matrix = abi::Handle<Operand, CusparseCode>;
/// Argument that is not read.
type Unread = *const c_void;

/// State of a handle that the program created.
struct CusparseSession {
    stream: CUstream,
}

/// Value of `cusparseOrder_t` for row-major order.
const BY_ROWS: c_int = 2;
/// Value of `cusparseIndexType_t` for indices of 64 bits.
const INDEX_OF_64_BITS: c_int = 3;

/// Note on sums and products of sparse matrices.
const GUESSED: &str = "the number of values of a sum or a product of sparse matrices is not known \
    in a dry run: it is the number for values at random places";

/// Object that stands for all descriptors, such as `cusparseMatDescr_t`. It is never read.
static DESCRIPTION: u64 = 0;

// Some functions declare fewer arguments than callers pass. The difference is harmless: in every C
// ABI of Unix, the caller cleans up the arguments after the call.
export! {
    fn cusparseCreate(handle: Out<Handle>) -> Outcome {
        handle.require()?;
        report::add_line("cuSPARSE", "work areas are by rules that were measured on an H200");
        if !device::load(Loaded::Cusparse) {
            return Err(CusparseCode::ALLOC_FAILED);
        }
        handle.write(Handle::new(CusparseSession { stream: CUstream::NULL }))
    }

    fn cusparseDestroy(handle: Handle) -> Outcome {
        handle.end()
    }

    fn cusparseSetStream(handle: Handle, stream: CUstream) -> Outcome {
        handle.change(|session| session.stream = stream)
    }

    fn cusparseGetVersion(_handle: Handle, version: Out<c_int>) -> Outcome {
        version.write(VERSION)
    }

    /// Writes a part of cuSPARSE's version: the major number, the minor number, or the patch level.
    fn cusparseGetProperty(part: c_int, value: Out<c_int>) -> Outcome {
        value.write(match part {
            0 => VERSION / 1000,
            1 => VERSION / 100 % 10,
            _ => VERSION % 100,
        })
    }

    fn cusparseCreateConstCsr | cusparseCreateCsr(
        made: Out<Matrix>, rows: i64, columns: i64, values: i64, _row_data: Unread,
        _column_data: Unread, _data: Unread, index: c_int, _column_index: c_int, _base: c_int,
        kind: c_int,
    ) -> Outcome {
        create(made, Layout::Rows, [rows, columns, values], index, kind)
    }

    fn cusparseCreateConstCoo | cusparseCreateCoo(
        made: Out<Matrix>, rows: i64, columns: i64, values: i64, _row_data: Unread,
        _column_data: Unread, _data: Unread, index: c_int, _base: c_int, kind: c_int,
    ) -> Outcome {
        create(made, Layout::Coordinates, [rows, columns, values], index, kind)
    }

    fn cusparseCreateConstDnMat | cusparseCreateDnMat(
        made: Out<Matrix>, rows: i64, columns: i64, _leading: i64, _data: Unread, kind: c_int,
        order: c_int,
    ) -> Outcome {
        create(made, Layout::Dense { by_rows: order == BY_ROWS }, [rows, columns, 0], 0, kind)
    }

    fn cusparseCreateConstDnVec | cusparseCreateDnVec(
        made: Out<Matrix>, rows: i64, _data: Unread, kind: c_int,
    ) -> Outcome {
        create(made, Layout::Dense { by_rows: false }, [rows, 1, 0], 0, kind)
    }

    fn cusparseDestroyDnMat | cusparseDestroyDnVec | cusparseDestroySpMat(matrix: Matrix)
        -> Outcome
    {
        matrix.end()
    }

    fn cusparseSpMatGetSize(
        matrix: Matrix, rows: Out<i64>, columns: Out<i64>, values: Out<i64>,
    ) -> Outcome {
        matrix.read(|matrix| {
            rows.write(matrix.rows as i64)?;
            columns.write(matrix.columns as i64)?;
            values.write(matrix.values as i64)
        })?
    }

    fn cusparseCreateBsrsm2Info | cusparseCreateBsrsv2Info | cusparseCreateMatDescr |
        cusparseSpGEMM_createDescr | cusparseSpSM_createDescr | cusparseSpSV_createDescr
        (made: Out<*const c_void>) -> Outcome
    {
        made.write((&raw const DESCRIPTION).cast())
    }

    fn cusparseSpMM_bufferSize(
        _handle: Handle, _operation: c_int, _b_operation: c_int, _alpha: Unread, a: Matrix,
        _b: Matrix, _beta: Unread, c: Matrix, _computed: c_int, algorithm: c_int, bytes: Out<usize>,
    ) -> Outcome {
        let c = c.read(|c| *c)?;
        let by_rows = c.layout == Layout::Dense { by_rows: true };
        bytes.write(a.read(|a| a.times_dense(c.columns, by_rows, algorithm))? as usize)
    }

    fn cusparseSpMV_bufferSize(
        _handle: Handle, _operation: c_int, _alpha: Unread, a: Matrix, _x: Matrix, _beta: Unread,
        _y: Matrix, _computed: c_int, _algorithm: c_int, bytes: Out<usize>,
    ) -> Outcome {
        bytes.write(a.read(Operand::times_vector)? as usize)
    }

    /// Writes the workspace's size for a product of dense matrices that is computed only at the
    /// values of a sparse matrix. cuSPARSE returns 1 byte, or 0 if there are no values.
    fn cusparseSDDMM_bufferSize(
        _handle: Handle, _a_operation: c_int, _b_operation: c_int, _alpha: Unread, _a: Matrix,
        _b: Matrix, _beta: Unread, c: Matrix, _computed: c_int, _algorithm: c_int,
        bytes: Out<usize>,
    ) -> Outcome {
        bytes.write(c.read(|c| usize::from(c.values > 0))?)
    }

    /// Writes the workspace's size for a triangular system with a dense matrix as right-hand side.
    fn cusparseSpSM_bufferSize(
        _handle: Handle, _a_operation: c_int, _b_operation: c_int, _alpha: Unread, a: Matrix,
        _b: Matrix, c: Matrix, _computed: c_int, _algorithm: c_int, _description: Unread,
        bytes: Out<usize>,
    ) -> Outcome {
        let columns = c.read(|c| c.columns)?;
        bytes.write(a.read(|a| a.solve(columns))? as usize)
    }

    /// Writes the workspace's size for a triangular system with a vector as right-hand side.
    fn cusparseSpSV_bufferSize(
        _handle: Handle, _operation: c_int, _alpha: Unread, a: Matrix, _x: Matrix, _y: Matrix,
        _computed: c_int, _algorithm: c_int, _description: Unread, bytes: Out<usize>,
    ) -> Outcome {
        bytes.write(a.read(|a| a.solve(1))? as usize)
    }

    /// Writes the size of the first workspace for a product of sparse matrices, if `area` is null.
    /// Otherwise, enqueues an empty kernel in place of the computation.
    fn cusparseSpGEMM_workEstimation(
        handle: Handle, _a_operation: c_int, _b_operation: c_int, _alpha: Unread, a: Matrix,
        b: Matrix, _beta: Unread, _c: Matrix, _computed: c_int, _algorithm: c_int,
        _description: Unread, bytes: Out<usize>, area: Unread,
    ) -> Outcome {
        multiply(handle, a, b, bytes, area, 0)
    }

    /// Writes the size of the second workspace for a product of sparse matrices, if `area` is null.
    /// In any case, sets the number of values of the product `c`.
    fn cusparseSpGEMM_compute(
        handle: Handle, _a_operation: c_int, _b_operation: c_int, _alpha: Unread, a: Matrix,
        b: Matrix, _beta: Unread, c: Matrix, _computed: c_int, _algorithm: c_int,
        _description: Unread, bytes: Out<usize>, area: Unread,
    ) -> Outcome {
        multiply(handle, a, b, bytes, area, 1)?;
        let b = b.read(|b| *b)?;
        let values = a.read(|a| a.product_values(&b))?;
        report::add_line("cuSPARSE", GUESSED);
        c.change(|c| c.values = values)
    }

    fn cusparseCcsrgeam2_bufferSizeExt | cusparseDcsrgeam2_bufferSizeExt |
        cusparseScsrgeam2_bufferSizeExt | cusparseZcsrgeam2_bufferSizeExt(
        _handle: Handle,
        _m: c_int,
        _n: c_int,
        _alpha: Unread,
        _a: Unread,
        _a_values: c_int,
        _a_value: Unread,
        _a_row: Unread,
        _a_column: Unread,
        _beta: Unread,
        _b: Unread,
        _b_values: c_int,
        _b_value: Unread,
        _b_row: Unread,
        _b_column: Unread,
        _c: Unread,
        _c_value: Unread,
        _c_row: Unread,
        _c_column: Unread,
        bytes: Out<usize>,
    ) -> Outcome {
        bytes.write(512)
    }

    /// Writes an upper bound of the number of values in the sum of two sparse matrices. A GPU
    /// counts two values at the same position as one, but a dry run knows no positions.
    fn cusparseXcsrgeam2Nnz(
        _handle: Handle, m: c_int, n: c_int, _a: Unread, a_values: c_int, _a_row: Unread,
        _a_column: Unread, _b: Unread, b_values: c_int, _b_row: Unread, _b_column: Unread,
        _c: Unread, _c_row: Unread, values: Out<c_int>,
    ) -> Outcome {
        report::add_line("cuSPARSE", GUESSED);
        values.write(a_values.saturating_add(b_values).min(m.saturating_mul(n)))
    }

    fn cusparseXcoosort_bufferSizeExt(
        _handle: Handle, _m: c_int, _n: c_int, values: c_int, _row_data: Unread,
        _column_data: Unread, bytes: Out<usize>,
    ) -> Outcome {
        bytes.write(workspace::sort(values.max(0) as u64, 16) as usize)
    }

    fn cusparseXcsrsort_bufferSizeExt(
        _handle: Handle, _m: c_int, _n: c_int, values: c_int, _row_data: Unread,
        _column_data: Unread, bytes: Out<usize>,
    ) -> Outcome {
        bytes.write(workspace::sort(values.max(0) as u64, 20) as usize)
    }

    /// Writes -1: no pivot is zero.
    fn cusparseXbsrsm2_zeroPivot | cusparseXbsrsv2_zeroPivot(
        _handle: Handle, _description: Unread, position: Out<c_int>,
    ) -> Outcome {
        position.write(-1)
    }

    /// Succeeds without an effect.
    fn cusparseCsrSetPointers | cusparseCsrSetStridedBatch | cusparseDestroyBsrsm2Info |
        cusparseDestroyBsrsv2Info | cusparseDestroyMatDescr | cusparseDnMatSetStridedBatch |
        cusparseSetMatDiagType | cusparseSetMatFillMode | cusparseSetMatIndexBase |
        cusparseSetMatType | cusparseSetPointerMode | cusparseSpGEMM_destroyDescr |
        cusparseSpMatSetAttribute | cusparseSpSM_destroyDescr | cusparseSpSV_destroyDescr()
        -> Outcome
    {
        Ok(())
    }
}

/// Creates a matrix. `sizes` has the numbers of rows, columns and values. `index` is a value of
/// `cusparseIndexType_t`, and `kind` is a value of `cudaDataType_t`.
fn create(
    made: Out<Matrix>,
    layout: Layout,
    sizes: [i64; 3],
    index: c_int,
    kind: c_int,
) -> Outcome {
    made.require()?;
    if sizes.iter().any(|size| *size < 0) {
        return Err(CusparseCode::NULL);
    }
    let [rows, columns, values] = sizes.map(|size| size as u64);
    let index = if index == INDEX_OF_64_BITS { 8 } else { 4 };
    let value = match kind {
        1 | 4 => 8,
        2 | 14 => 2,
        5 => 16,
        _ => 4,
    };
    made.write(Matrix::new(Operand { layout, rows, columns, values, index, value }))
}

/// Replaces a step of a product of sparse matrices. If the program passes a workspace, enqueues an
/// empty kernel in place of the computation. Otherwise, writes the workspace's size in bytes.
fn multiply(
    handle: Handle,
    a: Matrix,
    b: Matrix,
    bytes: Out<usize>,
    area: Unread,
    which: usize,
) -> Outcome {
    if !area.is_null() {
        return launch(handle);
    }
    let b = b.read(|b| *b)?;
    bytes.write(a.read(|a| a.times_sparse(&b))?[which] as usize)
}

fn launch(handle: Handle) -> Outcome {
    device::launch(handle.read(|session| session.stream)?);
    Ok(())
}

macro_rules! computes_nothing {
    ($($name:ident)*) => {
        export! {$(
            /// Enqueues an empty kernel on the handle's stream.
            fn $name(handle: Handle) -> Outcome {
                launch(handle)
            }
        )*}
    };
}

cusparse_functions!(computes_nothing);
