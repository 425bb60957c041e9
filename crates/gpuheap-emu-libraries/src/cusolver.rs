//! cuSOLVER: handles, and the work areas of factorisations. Computes nothing.

mod workspace;

use std::ffi::{c_int, c_longlong, c_void};

use gpuheap_driver::abi::{self, Code};
use gpuheap_driver::{CUstream, export};

use crate::device::{self, Loaded};
use crate::report;
use workspace::Number;

/// Version of cuSOLVER to return: 12.0, of CUDA 13.0.
const VERSION: c_int = 12_000;

/// Result code of a cuSOLVER function.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct CusolverCode(c_int);

impl CusolverCode {
    const ALLOC_FAILED: Self = Self(2);
    const INVALID_VALUE: Self = Self(3);
}

impl Code for CusolverCode {
    const SUCCESS: Self = Self(0);
    const NULL: Self = Self::INVALID_VALUE;
    /// `CUSOLVER_STATUS_NOT_INITIALIZED`.
    const NO_OBJECT: Self = Self(1);
    /// `CUSOLVER_STATUS_INTERNAL_ERROR`.
    const PANICKED: Self = Self(7);
}

type Outcome = Result<(), CusolverCode>;
type Out<T> = abi::Out<T, CusolverCode>;
type Handle = abi::Handle<CusolverSession, CusolverCode>;
/// Argument that is not read.
type Unread = *const c_void;

/// State of a handle that the program created.
struct CusolverSession {
    stream: CUstream,
}

/// Value of `cublasFillMode_t` for the upper triangle.
const UPPER: c_int = 1;

/// Object to which all parameter handles point. It is never read.
static PARAMETERS: u64 = 0;

// Some functions declare fewer arguments than callers pass. The difference is harmless: in every C
// ABI of Unix, the caller cleans up the arguments after the call.
export! {
    fn cusolverDnCreate(handle: Out<Handle>) -> Outcome {
        handle.require()?;
        report::add_line("cuSOLVER", "work areas are by rules that were measured on an H200");
        if !device::load(Loaded::Cusolver) {
            return Err(CusolverCode::ALLOC_FAILED);
        }
        handle.write(Handle::new(CusolverSession { stream: CUstream::NULL }))
    }

    fn cusolverDnDestroy(handle: Handle) -> Outcome {
        handle.end()
    }

    fn cusolverDnSetStream(handle: Handle, stream: CUstream) -> Outcome {
        handle.change(|session| session.stream = stream)
    }

    fn cusolverDnGetStream(handle: Handle, stream: Out<CUstream>) -> Outcome {
        stream.write(handle.read(|session| session.stream)?)
    }

    fn cusolverGetVersion(version: Out<c_int>) -> Outcome {
        version.write(VERSION)
    }

    /// Writes a part of cuSOLVER's version: the major number, the minor number, or the patch level.
    fn cusolverGetProperty(part: c_int, value: Out<c_int>) -> Outcome {
        value.write(match part {
            0 => VERSION / 1000,
            1 => VERSION / 100 % 10,
            _ => VERSION % 100,
        })
    }

    /// Creates parameters. They are never read.
    fn cusolverDnCreateGesvdjInfo | cusolverDnCreateParams | cusolverDnCreateSyevjInfo
        (made: Out<*const c_void>) -> Outcome
    {
        made.write((&raw const PARAMETERS).cast())
    }
}

/// Exports functions that write the size of a work area in elements. Each row has the names for
/// single, double, complex and double complex numbers, and the arguments up to the last one that
/// the function reads.
macro_rules! sizes {
    ($(
        $(#[$doc:meta])*
        fn [$single:ident $double:ident $complex:ident $both:ident]
            ($($arg:ident: $type:ty),*; $($after:ident: $last:ty),*) |$number:ident| $area:expr;
    )*) => {$(
        sizes!(@one $single Single [$(#[$doc])*] ($($arg: $type),*; $($after: $last),*) $number, $area);
        sizes!(@one $double Double [$(#[$doc])*] ($($arg: $type),*; $($after: $last),*) $number, $area);
        sizes!(@one $complex Complex [$(#[$doc])*] ($($arg: $type),*; $($after: $last),*) $number, $area);
        sizes!(@one $both DoubleComplex [$(#[$doc])*] ($($arg: $type),*; $($after: $last),*) $number, $area);
    )*};
    (@one $name:ident $kind:ident [$($doc:tt)*] $arguments:tt $number:ident, $area:expr) => {
        sizes!(@export $name [$($doc)*] $arguments {
            let $number = Number::$kind;
            $area
        });
    };
    (@export $name:ident [$($doc:tt)*]
        ($($arg:ident: $type:ty),*; $($after:ident: $last:ty),*) $area:block) => {
        export! {
            $($doc)*
            fn $name(_handle: Unread, $($arg: $type,)* size: Out<c_int>, $($after: $last),*)
                -> Outcome
            {
                let elements: u64 = $area;
                size.write(c_int::try_from(elements).map_err(|_| CusolverCode::INVALID_VALUE)?)
            }
        }
    };
}

/// Converts a size that the program passed.
fn size(value: impl TryInto<u64>) -> Result<u64, CusolverCode> {
    value.try_into().map_err(|_| CusolverCode::INVALID_VALUE)
}

fn number(kind: c_int) -> Result<Number, CusolverCode> {
    Number::of(kind).ok_or(CusolverCode::INVALID_VALUE)
}

sizes! {
    /// Writes the workspace's size for an LU factorisation.
    fn [cusolverDnSgetrf_bufferSize cusolverDnDgetrf_bufferSize cusolverDnCgetrf_bufferSize
        cusolverDnZgetrf_bufferSize](m: c_int, n: c_int, _a: Unread, _lda: c_int;)
        |number| workspace::lu(size(m.min(n))?) / number.bytes();

    /// Writes the workspace's size for a Cholesky factorisation.
    fn [cusolverDnSpotrf_bufferSize cusolverDnDpotrf_bufferSize cusolverDnCpotrf_bufferSize
        cusolverDnZpotrf_bufferSize](half: c_int, n: c_int, _a: Unread, _lda: c_int;)
        |number| workspace::cholesky(number, size(n)?, half == UPPER) / number.bytes();

    /// Writes the workspace's size for the factorisation of a symmetric indefinite matrix.
    fn [cusolverDnSsytrf_bufferSize cusolverDnDsytrf_bufferSize cusolverDnCsytrf_bufferSize
        cusolverDnZsytrf_bufferSize](n: c_int, _a: Unread, _lda: c_int;)
        |number| workspace::indefinite(number, size(n)?);

    /// Writes the workspace's size for a QR factorisation.
    fn [cusolverDnSgeqrf_bufferSize cusolverDnDgeqrf_bufferSize cusolverDnCgeqrf_bufferSize
        cusolverDnZgeqrf_bufferSize](_m: c_int, n: c_int, _a: Unread, _lda: c_int;)
        |_number| workspace::qr(size(n)?);

    /// Writes the workspace's size for building a matrix from Householder reflectors.
    fn [cusolverDnSorgqr_bufferSize cusolverDnDorgqr_bufferSize cusolverDnCungqr_bufferSize
        cusolverDnZungqr_bufferSize]
        (m: c_int, n: c_int, k: c_int, _a: Unread, _lda: c_int, _tau: Unread;)
        |_number| workspace::reflect(size(m)?, size(n)?, size(k)?);

    /// Writes the workspace's size for multiplying a matrix by Householder reflectors.
    fn [cusolverDnSormqr_bufferSize cusolverDnDormqr_bufferSize cusolverDnCunmqr_bufferSize
        cusolverDnZunmqr_bufferSize]
        (side: c_int, _trans: c_int, m: c_int, n: c_int, k: c_int, _a: Unread, _lda: c_int,
         _tau: Unread, _c: Unread, _ldc: c_int;)
        |_number| workspace::multiply(side == 0, size(m)?, size(n)?, size(k)?);

    /// Writes the workspace's size for eigenvalues by divide and conquer.
    fn [cusolverDnSsyevd_bufferSize cusolverDnDsyevd_bufferSize cusolverDnCheevd_bufferSize
        cusolverDnZheevd_bufferSize]
        (_job: c_int, _half: c_int, n: c_int, _a: Unread, _lda: c_int, _w: Unread;)
        |_number| workspace::divide(size(n)?);

    /// Writes the workspace's size for eigenvalues by Jacobi's method.
    fn [cusolverDnSsyevj_bufferSize cusolverDnDsyevj_bufferSize cusolverDnCheevj_bufferSize
        cusolverDnZheevj_bufferSize]
        (_job: c_int, _half: c_int, n: c_int, _a: Unread, _lda: c_int, _w: Unread;)
        |_number| workspace::rotate(size(n)?);

    /// Writes the workspace's size for eigenvalues of many matrices by Jacobi's method.
    fn [cusolverDnSsyevjBatched_bufferSize cusolverDnDsyevjBatched_bufferSize
        cusolverDnCheevjBatched_bufferSize cusolverDnZheevjBatched_bufferSize]
        (_job: c_int, _half: c_int, n: c_int, _a: Unread, _lda: c_int, _w: Unread;
         _settings: Unread, matrices: c_int)
        |_number| workspace::rotate_many(size(n)?, size(matrices)?);

    /// Writes the workspace's size for singular values by QR iteration.
    fn [cusolverDnSgesvd_bufferSize cusolverDnDgesvd_bufferSize cusolverDnCgesvd_bufferSize
        cusolverDnZgesvd_bufferSize](m: c_int, n: c_int;)
        |_number| workspace::iterate(size(m)?, size(n)?);

    /// Writes the workspace's size for singular values by Jacobi's method.
    fn [cusolverDnSgesvdj_bufferSize cusolverDnDgesvdj_bufferSize cusolverDnCgesvdj_bufferSize
        cusolverDnZgesvdj_bufferSize]
        (_job: c_int, economic: c_int, m: c_int, n: c_int, _a: Unread, _lda: c_int, _s: Unread,
         _u: Unread, _ldu: c_int, _v: Unread, _ldv: c_int;)
        |_number| workspace::rotate_singular(size(m)?, size(n)?, economic != 0);

    /// Writes the workspace's size for singular values of many small matrices by Jacobi's method.
    fn [cusolverDnSgesvdjBatched_bufferSize cusolverDnDgesvdjBatched_bufferSize
        cusolverDnCgesvdjBatched_bufferSize cusolverDnZgesvdjBatched_bufferSize]
        (_job: c_int, _m: c_int, _n: c_int, _a: Unread, _lda: c_int, _s: Unread, _u: Unread,
         _ldu: c_int, _v: Unread, _ldv: c_int;)
        |_number| workspace::SMALL_SINGULAR;

    /// Writes the workspace's size for singular values of many matrices, by way of the eigenvalues
    /// of `A^T A`.
    fn [cusolverDnSgesvdaStridedBatched_bufferSize cusolverDnDgesvdaStridedBatched_bufferSize
        cusolverDnCgesvdaStridedBatched_bufferSize cusolverDnZgesvdaStridedBatched_bufferSize]
        (_job: c_int, _rank: c_int, m: c_int, n: c_int, _a: Unread, _lda: c_int,
         _a_stride: c_longlong, _s: Unread, _s_stride: c_longlong, _u: Unread, _ldu: c_int,
         _u_stride: c_longlong, _v: Unread, _ldv: c_int, _v_stride: c_longlong;
         matrices: c_int)
        |number| workspace::approximate(number, size(m)?, size(n)?, size(matrices)?);
}

/// Writes the sizes of the work areas on the device and on the host, in bytes.
fn areas(device: Out<usize>, device_bytes: u64, host: Out<usize>, host_bytes: u64) -> Outcome {
    device.write(device_bytes as usize)?;
    host.write(host_bytes as usize)
}

export! {
    fn cusolverDnXpotrf_bufferSize(
        _handle: Unread, _parameters: Unread, half: c_int, n: i64, kind: c_int, _a: Unread,
        _lda: i64, _computed: c_int, device: Out<usize>, host: Out<usize>,
    ) -> Outcome {
        areas(device, workspace::cholesky(number(kind)?, size(n)?, half == UPPER), host, 0)
    }

    fn cusolverDnXgeqrf_bufferSize(
        _handle: Unread, _parameters: Unread, _m: i64, n: i64, kind: c_int, _a: Unread, _lda: i64,
        _tau_kind: c_int, _tau: Unread, _computed: c_int, device: Out<usize>, host: Out<usize>,
    ) -> Outcome {
        areas(device, workspace::qr(size(n)?) * number(kind)?.bytes() + 128, host, 0)
    }

    /// Writes 0, because solving a symmetric indefinite system needs no work area.
    fn cusolverDnXsytrs_bufferSize(
        _handle: Unread, _half: c_int, _n: i64, _columns: i64, _kind: c_int, _a: Unread, _lda: i64,
        _pivots: Unread, _b_kind: c_int, _b: Unread, _ldb: i64, device: Out<usize>,
        host: Out<usize>,
    ) -> Outcome {
        areas(device, 0, host, 0)
    }

    fn cusolverDnXsyevd_bufferSize(
        _handle: Unread, _parameters: Unread, _job: c_int, _half: c_int, n: i64, kind: c_int,
        _a: Unread, _lda: i64, _w_kind: c_int, _w: Unread, _computed: c_int, device: Out<usize>,
        host: Out<usize>,
    ) -> Outcome {
        areas(device, workspace::divide(size(n)?) * number(kind)?.bytes() + 128, host, 0)
    }

    fn cusolverDnXsyevBatched_bufferSize(
        _handle: Unread, _parameters: Unread, _job: c_int, _half: c_int, n: i64, kind: c_int,
        _a: Unread, _lda: i64, _w_kind: c_int, _w: Unread, _computed: c_int, device: Out<usize>,
        host: Out<usize>, matrices: i64,
    ) -> Outcome {
        let one = workspace::divide(size(n)?) * number(kind)?.bytes();
        areas(device, one * size(matrices)? + 128, host, 0)
    }

    fn cusolverDnXgeev_bufferSize(
        _handle: Unread, _parameters: Unread, _left: c_int, _right: c_int, n: i64, kind: c_int,
        _a: Unread, _lda: i64, _w_kind: c_int, _w: Unread, _left_kind: c_int, _left_vectors: Unread,
        _ldl: i64, _right_kind: c_int, _right_vectors: Unread, _ldr: i64, _computed: c_int,
        device: Out<usize>, host: Out<usize>,
    ) -> Outcome {
        let (device_bytes, host_bytes) = workspace::general(number(kind)?, size(n)?);
        areas(device, device_bytes, host, host_bytes)
    }

    /// Succeeds without an effect.
    fn cusolverDnDestroyGesvdjInfo | cusolverDnDestroyParams | cusolverDnDestroySyevjInfo |
        cusolverDnXgesvdjSetMaxSweeps | cusolverDnXgesvdjSetSortEig |
        cusolverDnXgesvdjSetTolerance() -> Outcome
    {
        Ok(())
    }
}

macro_rules! computes_nothing {
    ($($name:ident)*) => {
        export! {$(
            /// Enqueues an empty kernel on the handle's stream, in place of the computation.
            fn $name(handle: Handle) -> Outcome {
                device::launch(handle.read(|session| session.stream)?);
                Ok(())
            }
        )*}
    };
}

cusolver_functions!(computes_nothing);
