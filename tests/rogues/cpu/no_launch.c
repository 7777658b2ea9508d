// rogue: is no kernel at all: nothing declares a launch
// expect: rejected launch

int main(void)
{
    return 0;
}
