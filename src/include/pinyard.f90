! pinyard: registered memory that no allocator can hang.
!
! The functions of pinyard.h, which says what each does, for Fortran 2018: compile this
! file with the program's own compiler, and link as pkg-config says.
!
!   gfortran -c $(pkg-config --variable=includedir pinyard)/pinyard.f90
!   gfortran prog.f90 pinyard.o $(pkg-config --libs pinyard)
!
! A name that C has for a structure ends in _t here, where capitals are no difference.
! Structures begin with zeros: set `size` to c_sizeof of them. C's unsigned integers are
! signed ones of the same length. An argument that may be null in C is optional; memory
! is passed as c_loc of something that is a target and contiguous.
!
! Made of pinyard.h by xtask/ci/header.sh.
!
! SPDX-License-Identifier: MIT OR Apache-2.0
module pinyard
    use, intrinsic :: iso_c_binding
    implicit none
    private
    public :: pny_message, pny_text

    integer(c_int32_t), parameter, public :: PNY_BACKEND_OPS = 0_c_int32_t
    integer(c_int32_t), parameter, public :: PNY_BACKEND_MLOCK = 1_c_int32_t
    integer(c_int32_t), parameter, public :: PNY_BACKEND_IO_URING = 2_c_int32_t
    integer(c_int32_t), parameter, public :: PNY_BACKEND_VERBS = 3_c_int32_t
    integer(c_int32_t), parameter, public :: PNY_BACKEND_UCX = 4_c_int32_t
    integer(c_int32_t), parameter, public :: PNY_BACKEND_LIBFABRIC = 5_c_int32_t
    integer(c_int32_t), parameter, public :: PNY_LOCAL_READ = 0_c_int32_t
    integer(c_int32_t), parameter, public :: PNY_LOCAL_WRITE = 1_c_int32_t
    integer(c_int32_t), parameter, public :: PNY_REMOTE_WRITE = 2_c_int32_t
    integer(c_int32_t), parameter, public :: PNY_REMOTE_READ = 4_c_int32_t
    integer(c_int32_t), parameter, public :: PNY_REMOTE_ATOMIC = 8_c_int32_t
    integer(c_int32_t), parameter, public :: PNY_TRUST_SHARED_MEMORY = 1_c_int32_t
    integer(c_int32_t), parameter, public :: PNY_ON_DEMAND = 2_c_int32_t
    integer(c_int32_t), parameter, public :: PNY_RELAXED_ORDERING = 4_c_int32_t
    integer(c_int32_t), parameter, public :: PNY_NOTIFY_ONLY = 8_c_int32_t
    integer(c_int32_t), parameter, public :: PNY_MEMORY_HOST = 0_c_int32_t
    integer(c_int32_t), parameter, public :: PNY_MEMORY_PINNED = 1_c_int32_t
    integer(c_int32_t), parameter, public :: PNY_MEMORY_DEVICE = 2_c_int32_t
    integer(c_int32_t), parameter, public :: PNY_DRIVER_CUDA = 0_c_int32_t
    integer(c_int32_t), parameter, public :: PNY_DRIVER_SIMULATED = 1_c_int32_t
    integer(c_int), parameter, public :: PNY_OK = 0_c_int
    integer(c_int), parameter, public :: PNY_ERR_INVALID = 1_c_int
    integer(c_int), parameter, public :: PNY_ERR_HOOKS_INCOMPLETE = 2_c_int
    integer(c_int), parameter, public :: PNY_ERR_ABSENT = 3_c_int
    integer(c_int), parameter, public :: PNY_ERR_BUSY = 4_c_int
    integer(c_int), parameter, public :: PNY_ERR_REFUSED = 5_c_int
    integer(c_int), parameter, public :: PNY_ERR_RESOURCES = 6_c_int
    integer(c_int), parameter, public :: PNY_ERR_NOT_READY = 7_c_int
    integer(c_int), parameter, public :: PNY_ERR_INTERNAL = 8_c_int
    integer(c_int), parameter, public :: PNY_ERR_STALE = 9_c_int
    integer(c_int), parameter, public :: PNY_ERR_UNMAPPED = 10_c_int
    integer(c_int), parameter, public :: PNY_ERR_READ_ONLY = 11_c_int
    integer(c_int), parameter, public :: PNY_ERR_LIMIT = 12_c_int
    integer(c_int), parameter, public :: PNY_ERR_UNSTABLE = 13_c_int
    integer(c_int), parameter, public :: PNY_ERR_FORKED = 14_c_int
    integer(c_int), parameter, public :: PNY_ERR_BACKEND = 15_c_int
    integer(c_int), parameter, public :: PNY_ERR_NOT_FOUND = 16_c_int

    type, bind(c), public :: pny_key_t
        integer(c_int64_t) :: lkey = 0
        integer(c_int64_t) :: rkey = 0
        integer(c_int64_t) :: handle = 0
    end type
    type, bind(c), public :: pny_backend_ops_t
        integer(c_size_t) :: size = 0
        type(c_ptr) :: name = c_null_ptr
        type(c_funptr) :: register_memory = c_null_funptr
        type(c_funptr) :: deregister_memory = c_null_funptr
        type(c_funptr) :: release = c_null_funptr
        integer(c_size_t) :: max_region_bytes = 0
        integer(c_size_t) :: max_regions = 0
        integer(c_int32_t) :: locks_memory = 0
        integer(c_int32_t) :: reserved = 0
    end type
    type, bind(c), public :: pny_registry_config_t
        integer(c_size_t) :: size = 0
        integer(c_int32_t) :: backend = 0
        integer(c_int32_t) :: flags = 0
        type(c_ptr) :: device = c_null_ptr
        type(c_ptr) :: object = c_null_ptr
        type(c_ptr) :: ops = c_null_ptr
        type(c_ptr) :: user = c_null_ptr
        integer(c_size_t) :: budget = 0
        integer(c_size_t) :: max_regions = 0
        integer(c_size_t) :: coarsen = 0
        integer(c_int32_t) :: port = 0
        integer(c_int32_t) :: reserved = 0
        type(c_ptr) :: share_budget_of = c_null_ptr
    end type
    type, bind(c), public :: pny_lease_t
        integer(c_int64_t) :: ticket = 0
        type(pny_key_t) :: key
        integer(c_int64_t) :: base = 0
        integer(c_int64_t) :: length = 0
    end type
    type, bind(c), public :: pny_pool_config_t
        integer(c_size_t) :: size = 0
        integer(c_int32_t) :: memory = 0
        integer(c_int32_t) :: driver = 0
        integer(c_int32_t) :: device = 0
        integer(c_int32_t) :: access = 0
        type(c_ptr) :: registry = c_null_ptr
        integer(c_size_t) :: slab_bytes = 0
        integer(c_size_t) :: limit = 0
        integer(c_int64_t) :: patience_ns = 0
        integer(c_size_t) :: simulated_bytes = 0
    end type
    type, bind(c), public :: pny_pool_counts_t
        integer(c_size_t) :: size = 0
        integer(c_int64_t) :: slabs = 0
        integer(c_int64_t) :: slabs_made = 0
        integer(c_int64_t) :: reserved_bytes = 0
        integer(c_int64_t) :: peak_reserved_bytes = 0
        integer(c_int64_t) :: live_bytes = 0
        integer(c_int64_t) :: live_blocks = 0
        integer(c_int64_t) :: waiting_blocks = 0
        integer(c_int64_t) :: free_bytes = 0
        integer(c_int64_t) :: allocations = 0
        integer(c_int64_t) :: frees = 0
    end type
    type, bind(c), public :: pny_block_place_t
        integer(c_size_t) :: size = 0
        type(pny_key_t) :: key
        integer(c_int64_t) :: slab_base = 0
        integer(c_int64_t) :: slab_length = 0
        integer(c_int64_t) :: block_base = 0
        integer(c_int64_t) :: block_length = 0
        integer(c_int64_t) :: offset = 0
    end type
    type, bind(c), public :: pny_registry_counts_t
        integer(c_size_t) :: size = 0
        integer(c_int64_t) :: hits = 0
        integer(c_int64_t) :: misses = 0
        integer(c_int64_t) :: registrations = 0
        integer(c_int64_t) :: deregistrations = 0
        integer(c_int64_t) :: failed_deregistrations = 0
        integer(c_int64_t) :: invalidations = 0
        integer(c_int64_t) :: merges = 0
        integer(c_int64_t) :: evictions = 0
        integer(c_int64_t) :: flushes = 0
        integer(c_int64_t) :: overflows = 0
        integer(c_int64_t) :: retries = 0
        integer(c_int64_t) :: uncached = 0
        integer(c_int64_t) :: registering_ns = 0
        integer(c_int64_t) :: registering_p50_ns = 0
        integer(c_int64_t) :: registering_p99_ns = 0
        integer(c_int64_t) :: deregistering_ns = 0
        integer(c_int64_t) :: deregistering_p50_ns = 0
        integer(c_int64_t) :: deregistering_p99_ns = 0
        integer(c_int64_t) :: regions = 0
        integer(c_int64_t) :: graveyard = 0
        integer(c_int64_t) :: pinned_bytes = 0
    end type
    type, bind(c), public :: pny_libfabric_monitor_counts_t
        integer(c_size_t) :: size = 0
        integer(c_int64_t) :: valid_calls = 0
        integer(c_int64_t) :: stale_answers = 0
        integer(c_int64_t) :: subscriptions = 0
        integer(c_int64_t) :: refusals = 0
        integer(c_int64_t) :: events = 0
        integer(c_int64_t) :: deliveries = 0
        integer(c_int64_t) :: keys = 0
    end type

    public :: pny_strerror
    public :: pny_last_error
    public :: pny_version
    public :: pny_init
    public :: pny_finalize
    public :: pny_notify_unmapped
    public :: pny_hooks_install
    public :: pny_hooks_verify
    public :: pny_hooks_report
    public :: pny_registry_create
    public :: pny_registry_destroy
    public :: pny_invalidate
    public :: pny_flush
    public :: pny_get
    public :: pny_put
    public :: pny_lookup
    public :: pny_pool_create
    public :: pny_pool_destroy
    public :: pny_pool_trim
    public :: pny_pool_stats
    public :: pny_stream_create
    public :: pny_stream_destroy
    public :: pny_pool_alloc
    public :: pny_pool_alloc_aligned
    public :: pny_pool_alloc_batch
    public :: pny_pool_warmup
    public :: pny_pool_free
    public :: pny_pool_free_after
    public :: pny_pool_defer_until
    public :: pny_pool_record_use
    public :: pny_pool_find
    public :: pny_torch_malloc
    public :: pny_torch_free
    public :: pny_torch_record_stream
    public :: pny_cupy_malloc
    public :: pny_cupy_free
    public :: pny_plug_stats
    public :: pny_plug_trim
    public :: pny_plug_retire
    public :: pny_device_find
    public :: pny_registry_stats
    public :: pny_explain
    public :: pny_libfabric_import_monitor
    public :: pny_libfabric_monitor_stats

    interface
        function pny_strerror(status) &
                bind(c, name="pny_strerror") result(answer)
            import
            integer(c_int), value :: status
            type(c_ptr) :: answer
        end function
        function pny_last_error() &
                bind(c, name="pny_last_error") result(answer)
            import
            type(c_ptr) :: answer
        end function
        function pny_version() &
                bind(c, name="pny_version") result(answer)
            import
            type(c_ptr) :: answer
        end function
        function pny_init() &
                bind(c, name="pny_init") result(answer)
            import
            integer(c_int) :: answer
        end function
        function pny_finalize() &
                bind(c, name="pny_finalize") result(answer)
            import
            integer(c_int) :: answer
        end function
        subroutine pny_notify_unmapped(address, length) &
                bind(c, name="pny_notify_unmapped")
            import
            type(c_ptr), value :: address
            integer(c_size_t), value :: length
        end subroutine
        function pny_hooks_install() &
                bind(c, name="pny_hooks_install") result(answer)
            import
            integer(c_int) :: answer
        end function
        function pny_hooks_verify() &
                bind(c, name="pny_hooks_verify") result(answer)
            import
            integer(c_int) :: answer
        end function
        function pny_hooks_report(text, capacity, length) &
                bind(c, name="pny_hooks_report") result(answer)
            import
            character(kind=c_char), intent(inout), optional :: text(*)
            integer(c_size_t), value :: capacity
            integer(c_size_t), intent(out), optional :: length
            integer(c_int) :: answer
        end function
        function pny_registry_create(config, registry) &
                bind(c, name="pny_registry_create") result(answer)
            import
            type(pny_registry_config_t), intent(in) :: config
            type(c_ptr), intent(out) :: registry
            integer(c_int) :: answer
        end function
        function pny_registry_destroy(registry) &
                bind(c, name="pny_registry_destroy") result(answer)
            import
            type(c_ptr), value :: registry
            integer(c_int) :: answer
        end function
        function pny_invalidate(registry, address, length) &
                bind(c, name="pny_invalidate") result(answer)
            import
            type(c_ptr), value :: registry
            type(c_ptr), value :: address
            integer(c_size_t), value :: length
            integer(c_int) :: answer
        end function
        function pny_flush(registry) &
                bind(c, name="pny_flush") result(answer)
            import
            type(c_ptr), value :: registry
            integer(c_int) :: answer
        end function
        function pny_get(registry, address, length, access, lease) &
                bind(c, name="pny_get") result(answer)
            import
            type(c_ptr), value :: registry
            type(c_ptr), value :: address
            integer(c_size_t), value :: length
            integer(c_int32_t), value :: access
            type(pny_lease_t), intent(inout) :: lease
            integer(c_int) :: answer
        end function
        function pny_put(lease) &
                bind(c, name="pny_put") result(answer)
            import
            type(pny_lease_t), intent(inout) :: lease
            integer(c_int) :: answer
        end function
        function pny_lookup(registry, address, length, access, key) &
                bind(c, name="pny_lookup") result(answer)
            import
            type(c_ptr), value :: registry
            type(c_ptr), value :: address
            integer(c_size_t), value :: length
            integer(c_int32_t), value :: access
            type(pny_key_t), intent(inout) :: key
            integer(c_int) :: answer
        end function
        function pny_pool_create(config, pool) &
                bind(c, name="pny_pool_create") result(answer)
            import
            type(pny_pool_config_t), intent(in) :: config
            type(c_ptr), intent(out) :: pool
            integer(c_int) :: answer
        end function
        function pny_pool_destroy(pool) &
                bind(c, name="pny_pool_destroy") result(answer)
            import
            type(c_ptr), value :: pool
            integer(c_int) :: answer
        end function
        function pny_pool_trim(pool, released) &
                bind(c, name="pny_pool_trim") result(answer)
            import
            type(c_ptr), value :: pool
            integer(c_size_t), intent(out), optional :: released
            integer(c_int) :: answer
        end function
        function pny_pool_stats(pool, counts) &
                bind(c, name="pny_pool_stats") result(answer)
            import
            type(c_ptr), value :: pool
            type(pny_pool_counts_t), intent(inout) :: counts
            integer(c_int) :: answer
        end function
        function pny_stream_create(pool, native, made) &
                bind(c, name="pny_stream_create") result(answer)
            import
            type(c_ptr), value :: pool
            type(c_ptr), value :: native
            type(c_ptr), intent(out) :: made
            integer(c_int) :: answer
        end function
        function pny_stream_destroy(stream) &
                bind(c, name="pny_stream_destroy") result(answer)
            import
            type(c_ptr), value :: stream
            integer(c_int) :: answer
        end function
        function pny_pool_alloc(pool, bytes, stream, block) &
                bind(c, name="pny_pool_alloc") result(answer)
            import
            type(c_ptr), value :: pool
            integer(c_size_t), value :: bytes
            type(c_ptr), value :: stream
            type(c_ptr), intent(inout) :: block
            integer(c_int) :: answer
        end function
        function pny_pool_alloc_aligned(pool, bytes, align, stream, block) &
                bind(c, name="pny_pool_alloc_aligned") result(answer)
            import
            type(c_ptr), value :: pool
            integer(c_size_t), value :: bytes
            integer(c_size_t), value :: align
            type(c_ptr), value :: stream
            type(c_ptr), intent(inout) :: block
            integer(c_int) :: answer
        end function
        function pny_pool_alloc_batch(pool, sizes, count, stream, blocks) &
                bind(c, name="pny_pool_alloc_batch") result(answer)
            import
            type(c_ptr), value :: pool
            integer(c_size_t), intent(in) :: sizes(*)
            integer(c_size_t), value :: count
            type(c_ptr), value :: stream
            type(c_ptr), intent(inout) :: blocks(*)
            integer(c_int) :: answer
        end function
        function pny_pool_warmup(pool, bytes, count, stream) &
                bind(c, name="pny_pool_warmup") result(answer)
            import
            type(c_ptr), value :: pool
            integer(c_size_t), value :: bytes
            integer(c_size_t), value :: count
            type(c_ptr), value :: stream
            integer(c_int) :: answer
        end function
        function pny_pool_free(pool, block) &
                bind(c, name="pny_pool_free") result(answer)
            import
            type(c_ptr), value :: pool
            type(c_ptr), value :: block
            integer(c_int) :: answer
        end function
        function pny_pool_free_after(pool, block, stream) &
                bind(c, name="pny_pool_free_after") result(answer)
            import
            type(c_ptr), value :: pool
            type(c_ptr), value :: block
            type(c_ptr), value :: stream
            integer(c_int) :: answer
        end function
        function pny_pool_defer_until(pool, block, passed, user) &
                bind(c, name="pny_pool_defer_until") result(answer)
            import
            type(c_ptr), value :: pool
            type(c_ptr), value :: block
            type(c_funptr), value :: passed
            type(c_ptr), value :: user
            integer(c_int) :: answer
        end function
        function pny_pool_record_use(pool, block, stream) &
                bind(c, name="pny_pool_record_use") result(answer)
            import
            type(c_ptr), value :: pool
            type(c_ptr), value :: block
            type(c_ptr), value :: stream
            integer(c_int) :: answer
        end function
        function pny_pool_find(pool, address, place) &
                bind(c, name="pny_pool_find") result(answer)
            import
            type(c_ptr), value :: pool
            type(c_ptr), value :: address
            type(pny_block_place_t), intent(inout) :: place
            integer(c_int) :: answer
        end function
        function pny_torch_malloc(bytes, device, stream) &
                bind(c, name="pny_torch_malloc") result(answer)
            import
            integer(c_size_t), value :: bytes
            integer(c_int), value :: device
            type(c_ptr), value :: stream
            type(c_ptr) :: answer
        end function
        subroutine pny_torch_free(block, bytes, device, stream) &
                bind(c, name="pny_torch_free")
            import
            type(c_ptr), value :: block
            integer(c_size_t), value :: bytes
            integer(c_int), value :: device
            type(c_ptr), value :: stream
        end subroutine
        subroutine pny_torch_record_stream(block, stream) &
                bind(c, name="pny_torch_record_stream")
            import
            type(c_ptr), value :: block
            type(c_ptr), value :: stream
        end subroutine
        function pny_cupy_malloc(param, bytes, device) &
                bind(c, name="pny_cupy_malloc") result(answer)
            import
            type(c_ptr), value :: param
            integer(c_size_t), value :: bytes
            integer(c_int), value :: device
            type(c_ptr) :: answer
        end function
        subroutine pny_cupy_free(param, block, device) &
                bind(c, name="pny_cupy_free")
            import
            type(c_ptr), value :: param
            type(c_ptr), value :: block
            integer(c_int), value :: device
        end subroutine
        function pny_plug_stats(device, counts) &
                bind(c, name="pny_plug_stats") result(answer)
            import
            integer(c_int), value :: device
            type(pny_pool_counts_t), intent(inout) :: counts
            integer(c_int) :: answer
        end function
        function pny_plug_trim(device, released) &
                bind(c, name="pny_plug_trim") result(answer)
            import
            integer(c_int), value :: device
            integer(c_size_t), intent(out), optional :: released
            integer(c_int) :: answer
        end function
        function pny_plug_retire(device, stream) &
                bind(c, name="pny_plug_retire") result(answer)
            import
            integer(c_int), value :: device
            type(c_ptr), value :: stream
            integer(c_int) :: answer
        end function
        function pny_device_find(address, place) &
                bind(c, name="pny_device_find") result(answer)
            import
            type(c_ptr), value :: address
            type(pny_block_place_t), intent(inout) :: place
            integer(c_int) :: answer
        end function
        function pny_registry_stats(registry, counts) &
                bind(c, name="pny_registry_stats") result(answer)
            import
            type(c_ptr), value :: registry
            type(pny_registry_counts_t), intent(inout) :: counts
            integer(c_int) :: answer
        end function
        function pny_explain(registry, address, size, access, text, capacity, length) &
                bind(c, name="pny_explain") result(answer)
            import
            type(c_ptr), value :: registry
            type(c_ptr), value :: address
            integer(c_size_t), value :: size
            integer(c_int32_t), value :: access
            character(kind=c_char), intent(inout), optional :: text(*)
            integer(c_size_t), value :: capacity
            integer(c_size_t), intent(out), optional :: length
            integer(c_int) :: answer
        end function
        function pny_libfabric_import_monitor() &
                bind(c, name="pny_libfabric_import_monitor") result(answer)
            import
            integer(c_int) :: answer
        end function
        function pny_libfabric_monitor_stats(counts) &
                bind(c, name="pny_libfabric_monitor_stats") result(answer)
            import
            type(pny_libfabric_monitor_counts_t), intent(inout) :: counts
            integer(c_int) :: answer
        end function
    end interface

contains

    ! Why the calling thread's last call failed: pny_last_error as a Fortran text.
    function pny_message() result(text)
        character(len=:), allocatable :: text
        text = pny_text(pny_last_error())
    end function

    ! A text of C's, copied; empty where the pointer is null.
    function pny_text(from) result(text)
        type(c_ptr), intent(in) :: from
        character(len=:), allocatable :: text
        character(kind=c_char), pointer :: characters(:)
        integer :: length, place
        interface
            function strlen(text) bind(c, name="strlen") result(length)
                import :: c_ptr, c_size_t
                type(c_ptr), value :: text
                integer(c_size_t) :: length
            end function
        end interface
        if (.not. c_associated(from)) then
            text = ""
            return
        end if
        length = int(strlen(from))
        call c_f_pointer(from, characters, [length])
        allocate(character(len=length) :: text)
        do place = 1, length
            text(place:place) = characters(place)
        end do
    end function
end module
