! The registration cache from Fortran: registration functions of the program's own, leases,
! and what a failure says.
!
!   transport          changes of the mapping are noticed
!   transport notify   where libc may not be patched: the program tells of them
module device
    use, intrinsic :: iso_c_binding
    use pinyard
    implicit none
    integer(c_int64_t), save :: registered = 0, deregistered = 0
    integer, save :: released = 0

contains

    function device_register(user, address, length, access, key) bind(c) result(errno)
        type(c_ptr), value :: user, address
        integer(c_size_t), value :: length
        integer(c_int32_t), value :: access
        type(pny_key_t), intent(out) :: key
        integer(c_int) :: errno
        registered = registered + 1
        key%lkey = registered
        key%handle = length + access
        errno = 0
        if (.not. c_associated(address) .or. .not. c_associated(user)) errno = 22
    end function

    function device_deregister(user, key, address, length) bind(c) result(errno)
        type(c_ptr), value :: user, address
        type(pny_key_t), intent(in) :: key
        integer(c_size_t), value :: length
        integer(c_int) :: errno
        errno = 0
        if (key%lkey < 1 .or. length < 1 .or. .not. c_associated(address) .or. .not. c_associated(user)) errno = 22
        if (errno == 0) deregistered = deregistered + 1
    end function

    subroutine device_release(user) bind(c)
        type(c_ptr), value :: user
        if (c_associated(user)) released = released + 1
    end subroutine

    subroutine expect(holds, what)
        logical, intent(in) :: holds
        character(len=*), intent(in) :: what
        if (.not. holds) then
            print '(4a)', "transport: not so: ", what, ": ", pny_message()
            error stop 1
        end if
    end subroutine

    ! Memory that is registered with its slab: a block's key comes by arithmetic.
    subroutine of_a_pool(registry)
        type(c_ptr), intent(in) :: registry
        type(pny_pool_config_t) :: config
        type(pny_pool_counts_t) :: counts
        type(pny_block_place_t) :: place
        type(c_ptr) :: pool, block, blocks(2)
        double precision, pointer :: grid(:)
        integer(c_size_t), parameter :: bytes = 80000
        integer(c_size_t) :: released

        config%size = c_sizeof(config)
        config%registry = registry
        config%slab_bytes = 2097152
        call expect(pny_pool_create(config, pool) == PNY_OK, "a pool")
        call expect(pny_pool_alloc(pool, bytes, c_null_ptr, block) == PNY_OK, "a block")
        call c_f_pointer(block, grid, [bytes / 8])
        grid = 1
        call expect(sum(grid) > 9999, "its memory")
        place%size = c_sizeof(place)
        call expect(pny_pool_find(pool, c_loc(grid(2)), place) == PNY_OK, "its place")
        call expect(place%block_base + 8 == place%slab_base + place%offset, "an element's offset")
        call expect(place%key%lkey == registered .and. place%block_length == bytes, "its key")
        call expect(pny_pool_alloc_batch(pool, [bytes, bytes], 2_c_size_t, c_null_ptr, blocks) == PNY_OK, "a batch")
        call expect(pny_pool_free(pool, blocks(1)) == PNY_OK, "the first freed")
        call expect(pny_pool_free(pool, blocks(2)) == PNY_OK, "the second freed")
        call expect(pny_pool_destroy(pool) == PNY_ERR_BUSY, "a block is in use")
        call expect(pny_pool_free(pool, block) == PNY_OK, "freed")
        call expect(pny_pool_free(pool, block) == PNY_ERR_STALE, "once")
        call expect(pny_pool_trim(pool, released) == PNY_OK .and. released == 2097152, "trimmed")
        counts%size = c_sizeof(counts)
        call expect(pny_pool_stats(pool, counts) == PNY_OK .and. counts%slabs_made == 1, "one slab")
        call expect(pny_pool_destroy(pool) == PNY_OK, "destroyed")
    end subroutine
end module

program transport
    use, intrinsic :: iso_c_binding
    use pinyard
    use device
    implicit none
    type(pny_backend_ops_t), target :: ops
    type(pny_registry_config_t) :: config
    type(pny_registry_counts_t) :: counts
    type(pny_lease_t) :: lease, copy
    type(pny_key_t) :: key
    type(c_ptr) :: registry, buffer
    integer, target :: user
    double precision, allocatable, target :: words(:)
    character(kind=c_char) :: why(200)
    character(len=6) :: how
    integer(c_size_t) :: bytes, length

    call get_command_argument(1, how)
    ops%size = c_sizeof(ops)
    ops%register_memory = c_funloc(device_register)
    ops%deregister_memory = c_funloc(device_deregister)
    ops%release = c_funloc(device_release)
    config%size = c_sizeof(config)
    config%backend = PNY_BACKEND_OPS
    config%ops = c_loc(ops)
    config%user = c_loc(user)
    if (how == "notify") config%flags = PNY_NOTIFY_ONLY
    call expect(pny_registry_create(config, registry) == PNY_OK, "a registry")

    allocate(words(100000))
    words = 1
    buffer = c_loc(words)
    bytes = size(words) * c_sizeof(words(1))
    call expect(pny_lookup(registry, buffer, bytes, PNY_LOCAL_WRITE, key) == PNY_ERR_NOT_FOUND, "nothing is known")
    call expect(pny_get(registry, buffer, bytes, PNY_LOCAL_WRITE, lease) == PNY_OK, "a lease")
    call expect(lease%key%lkey == 1 .and. lease%length >= bytes, "its key")
    call expect(pny_lookup(registry, buffer, bytes, PNY_LOCAL_WRITE, key) == PNY_OK, "it is known")
    copy = lease
    call expect(pny_registry_destroy(registry) == PNY_ERR_BUSY, "held")
    call expect(index(pny_message(), "leases of 1 region") > 0, "the text says by what")
    call expect(pny_put(lease) == PNY_OK, "given back")
    call expect(pny_put(copy) == PNY_ERR_STALE, "once")
    call expect(pny_explain(registry, buffer, bytes, PNY_LOCAL_WRITE, why, size(why, kind=c_size_t), length) == PNY_OK, "why")
    call expect(length > 0, "words")
    print '(*(a))', why(1:min(length, 199_c_size_t))
    call expect(pny_get(registry, buffer, 0_c_size_t, PNY_LOCAL_READ, lease) == PNY_ERR_INVALID, "an empty range")

    call pny_notify_unmapped(buffer, bytes)
    call expect(pny_get(registry, buffer, bytes, PNY_LOCAL_WRITE, lease) == PNY_OK, "another lease")
    call expect(lease%key%lkey == 2, "a new registration")
    call expect(pny_put(lease) == PNY_OK, "given back")
    call expect(pny_flush(registry) == PNY_OK, "flushed")
    call of_a_pool(registry)
    counts%size = c_sizeof(counts)
    call expect(pny_registry_stats(registry, counts) == PNY_OK, "counters")
    call expect(counts%registrations == 3 .and. counts%pinned_bytes == 0, "three registrations, none left")
    call expect(pny_registry_destroy(registry) == PNY_OK, "destroyed")
    call expect(pny_flush(registry) == PNY_ERR_STALE, "and gone")
    deallocate(words)
    call expect(released == 1 .and. registered == 3 .and. deregistered == 3, "the device knows nothing any more")
    print '(2a)', "pinyard ", pny_text(pny_version())
    print '(a)', "completed"
end program
