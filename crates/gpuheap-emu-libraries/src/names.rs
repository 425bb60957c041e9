//! Names of the functions that PyTorch imports.

/// Expands `$computes!` with the names of cuBLAS's functions that compute. Their first argument is
/// the handle. Expands `$sets!` with the names of functions that copy, or that set values that are
/// never read.
macro_rules! cublas_functions {
    ($computes:ident, $sets:ident) => {
        $computes!(
            "cuBLAS", 0, [
                cublasCaxpy_v2 cublasCcopy_v2 cublasCdotc_v2 cublasCdotu_v2 cublasCgelsBatched
                cublasCgemmBatched cublasCgemmStridedBatched cublasCgemm_v2 cublasCgemv_v2
                cublasCgerc_v2 cublasCgeru_v2 cublasCgetrfBatched
                cublasCgetrsBatched cublasChemm_v2 cublasChemv_v2 cublasCher2_v2 cublasCher2k_v2
                cublasCher_v2 cublasCherk_v2 cublasCrot_v2 cublasCrotg_v2 cublasCscal_v2
                cublasCsrot_v2 cublasCsscal_v2 cublasCswap_v2 cublasCsymm_v2 cublasCsymv_v2
                cublasCsyr2_v2 cublasCsyr2k_v2 cublasCsyr_v2 cublasCsyrk_v2 cublasCtrmm_v2
                cublasCtrmv_v2 cublasCtrsmBatched cublasCtrsm_v2 cublasCtrsv_v2 cublasDasum_v2
                cublasDaxpy_v2 cublasDcopy_v2 cublasDdot_v2 cublasDgelsBatched cublasDgemmBatched
                cublasDgemmStridedBatched cublasDgemm_v2 cublasDgemv_v2
                cublasDger_v2 cublasDgetrfBatched cublasDgetrsBatched cublasDnrm2_v2 cublasDotEx
                cublasDrot_v2 cublasDrotg_v2 cublasDrotm_v2 cublasDrotmg_v2 cublasDscal_v2
                cublasDswap_v2 cublasDsymm_v2 cublasDsymv_v2 cublasDsyr2_v2 cublasDsyr2k_v2
                cublasDsyr_v2 cublasDsyrk_v2 cublasDtrmm_v2 cublasDtrmv_v2 cublasDtrsmBatched
                cublasDtrsm_v2 cublasDtrsv_v2 cublasDzasum_v2 cublasDznrm2_v2 cublasGemmEx
                cublasGemmStridedBatchedEx cublasIcamax_v2 cublasIcamin_v2 cublasIdamax_v2
                cublasIdamin_v2 cublasIsamax_v2 cublasIsamin_v2 cublasIzamax_v2 cublasIzamin_v2
                cublasSasum_v2 cublasSaxpy_v2 cublasScasum_v2 cublasScnrm2_v2 cublasScopy_v2
                cublasSdot_v2 cublasSgelsBatched cublasSgemmBatched cublasSgemmEx
                cublasSgemmStridedBatched cublasSgemm_v2 cublasSgemv_v2
                cublasSger_v2 cublasSgetrfBatched cublasSgetrsBatched cublasSnrm2_v2
                cublasSrot_v2 cublasSrotg_v2 cublasSrotm_v2 cublasSrotmg_v2 cublasSscal_v2
                cublasSswap_v2 cublasSsymm_v2 cublasSsymv_v2 cublasSsyr2_v2 cublasSsyr2k_v2
                cublasSsyr_v2 cublasSsyrk_v2 cublasStrmm_v2 cublasStrmv_v2 cublasStrsmBatched
                cublasStrsm_v2 cublasStrsv_v2 cublasZaxpy_v2 cublasZcopy_v2 cublasZdotc_v2
                cublasZdotu_v2 cublasZdrot_v2 cublasZdscal_v2 cublasZgelsBatched
                cublasZgemmBatched cublasZgemmStridedBatched cublasZgemm_v2 cublasZgemv_v2
                cublasZgerc_v2 cublasZgeru_v2 cublasZgetrfBatched
                cublasZgetrsBatched cublasZhemm_v2 cublasZhemv_v2 cublasZher2_v2 cublasZher2k_v2
                cublasZher_v2 cublasZherk_v2 cublasZrot_v2 cublasZrotg_v2 cublasZscal_v2
                cublasZswap_v2 cublasZsymm_v2 cublasZsymv_v2 cublasZsyr2_v2 cublasZsyr2k_v2
                cublasZsyr_v2 cublasZsyrk_v2 cublasZtrmm_v2 cublasZtrmv_v2 cublasZtrsmBatched
                cublasZtrsm_v2 cublasZtrsv_v2
            ]
        );
        $sets!(
            "cuBLAS", 0, [
                cublasGetMatrixAsync cublasGetVectorAsync cublasSetMatrixAsync cublasSetVectorAsync
            ]
        );
    };
}

/// Expands `$callback!` with the names of cuSOLVER's functions that compute. Their first argument
/// is the handle.
macro_rules! cusolver_functions {
    ($callback:ident) => {
        $callback!(
            cusolverDnCgeqrf cusolverDnCgesvd cusolverDnCgesvdaStridedBatched cusolverDnCgesvdj
            cusolverDnCgesvdjBatched cusolverDnCgetrf cusolverDnCgetrs cusolverDnCheevd
            cusolverDnCheevj cusolverDnCheevjBatched cusolverDnCpotrf cusolverDnCpotrfBatched
            cusolverDnCpotrs cusolverDnCpotrsBatched cusolverDnCsytrf cusolverDnCungqr
            cusolverDnCunmqr cusolverDnDgeqrf cusolverDnDgesvd cusolverDnDgesvdaStridedBatched
            cusolverDnDgesvdj cusolverDnDgesvdjBatched cusolverDnDgetrf cusolverDnDgetrs
            cusolverDnDorgqr cusolverDnDormqr cusolverDnDpotrf cusolverDnDpotrfBatched
            cusolverDnDpotrs cusolverDnDpotrsBatched cusolverDnDsyevd cusolverDnDsyevj
            cusolverDnDsyevjBatched cusolverDnDsytrf cusolverDnSgeqrf cusolverDnSgesvd
            cusolverDnSgesvdaStridedBatched cusolverDnSgesvdj cusolverDnSgesvdjBatched
            cusolverDnSgetrf cusolverDnSgetrs cusolverDnSorgqr cusolverDnSormqr cusolverDnSpotrf
            cusolverDnSpotrfBatched cusolverDnSpotrs cusolverDnSpotrsBatched cusolverDnSsyevd
            cusolverDnSsyevj cusolverDnSsyevjBatched cusolverDnSsytrf cusolverDnXgeev
            cusolverDnXgeqrf cusolverDnXpotrf cusolverDnXpotrs cusolverDnXsyevBatched
            cusolverDnXsyevd cusolverDnXsytrs cusolverDnZgeqrf cusolverDnZgesvd
            cusolverDnZgesvdaStridedBatched cusolverDnZgesvdj cusolverDnZgesvdjBatched
            cusolverDnZgetrf cusolverDnZgetrs cusolverDnZheevd cusolverDnZheevj
            cusolverDnZheevjBatched cusolverDnZpotrf cusolverDnZpotrfBatched cusolverDnZpotrs
            cusolverDnZpotrsBatched cusolverDnZsytrf cusolverDnZungqr cusolverDnZunmqr
        );
    };
}

/// Expands `$callback!` with the names of cuSPARSE's functions that compute. Their first argument
/// is the handle.
macro_rules! cusparse_functions {
    ($callback:ident) => {
        $callback!(
            cusparseCbsrmm cusparseCbsrmv cusparseCbsrsm2_analysis cusparseCbsrsm2_solve
            cusparseCbsrsv2_analysis cusparseCbsrsv2_solve cusparseCcsrgeam2
            cusparseCreateIdentityPermutation cusparseDbsrmm cusparseDbsrmv
            cusparseDbsrsm2_analysis cusparseDbsrsm2_solve cusparseDbsrsv2_analysis
            cusparseDbsrsv2_solve cusparseDcsrgeam2 cusparseSDDMM cusparseSDDMM_preprocess
            cusparseSbsrmm cusparseSbsrmv cusparseSbsrsm2_analysis cusparseSbsrsm2_solve
            cusparseSbsrsv2_analysis cusparseSbsrsv2_solve cusparseScsrgeam2 cusparseSpGEMM_copy
            cusparseSpMM cusparseSpMV cusparseSpSM_analysis cusparseSpSM_solve
            cusparseSpSV_analysis cusparseSpSV_solve cusparseXcoo2csr cusparseXcoosortByRow
            cusparseXcsrsort cusparseZbsrmm cusparseZbsrmv cusparseZbsrsm2_analysis
            cusparseZbsrsm2_solve cusparseZbsrsv2_analysis cusparseZbsrsv2_solve
            cusparseZcsrgeam2
        );
    };
}

/// Expands `$callback!` for each library whose functions always fail, with its name, its error code
/// and the functions.
macro_rules! refused_functions {
    ($callback:ident) => {
        $callback!(
            "cuFile", 5001, [
                cuFileBufDeregister cuFileBufRegister cuFileHandleDeregister
                cuFileHandleRegister cuFileRead cuFileWrite
            ]
        );
        $callback!(
            "CUPTI", 27, [
                cuptiActivityDisable cuptiActivityEnable
                cuptiActivityEnableCudaEventDeviceTimestamps cuptiActivityEnableDriverApi
                cuptiActivityEnableRuntimeApi cuptiActivityFlushAll cuptiActivityGetNextRecord
                cuptiActivityGetNumDroppedRecords cuptiActivityPopExternalCorrelationId
                cuptiActivityPushExternalCorrelationId cuptiActivityRegisterCallbacks
                cuptiActivityRegisterTimestampCallback cuptiActivitySetAttribute
                cuptiEnableCallback cuptiEnableDomain cuptiFinalize
                cuptiSubscribe cuptiUnsubscribe
            ]
        );
        $callback!(
            "cuSPARSELt", 10, [
                cusparseLtDenseDescriptorInit cusparseLtInit cusparseLtMatDescriptorDestroy
                cusparseLtMatmul cusparseLtMatmulAlgGetAttribute
                cusparseLtMatmulAlgSelectionInit cusparseLtMatmulAlgSetAttribute
                cusparseLtMatmulDescSetAttribute cusparseLtMatmulDescriptorInit
                cusparseLtMatmulGetWorkspace cusparseLtMatmulPlanDestroy
                cusparseLtMatmulPlanInit cusparseLtMatmulSearch cusparseLtSpMMACompress2
                cusparseLtSpMMACompressedSize2 cusparseLtStructuredDescriptorInit
            ]
        );
        $callback!(
            "cuSPARSE", 10, [
                cusparseCbsrsm2_bufferSize cusparseCbsrsv2_bufferSize cusparseDbsrsm2_bufferSize
                cusparseDbsrsv2_bufferSize cusparseSbsrsm2_bufferSize cusparseSbsrsv2_bufferSize
                cusparseZbsrsm2_bufferSize cusparseZbsrsv2_bufferSize
            ]
        );
        $callback!(
            "NCCL", 5, [
                ncclCommShrink ncclCommWindowDeregister ncclCommWindowRegister ncclDevCommCreate
                ncclDevCommDestroy ncclGroupSimulateEnd
            ]
        );
        $callback!(
            "NVSHMEM", -1, [
                nvshmem_free nvshmem_info_get_version nvshmem_init nvshmem_malloc nvshmem_ptr
                nvshmem_team_n_pes nvshmem_team_split_strided nvshmemid_hostlib_finalize
                nvshmemid_hostlib_init_attr nvshmemid_init_status nvshmemx_alltoallmem_on_stream
                nvshmemx_broadcastmem_on_stream nvshmemx_cumodule_init nvshmemx_get_uniqueid
                nvshmemx_getmem_on_stream nvshmemx_mc_ptr nvshmemx_putmem_on_stream
                nvshmemx_putmem_signal_on_stream nvshmemx_set_attr_uniqueid_args
                nvshmemx_signal_wait_until_on_stream
            ]
        );
    };
}
