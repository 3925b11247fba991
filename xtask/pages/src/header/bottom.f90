
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
